"""What a worker is built from: data, batches, devices and rules, made of a job alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from esper.kasmina.blueprints import check_registered
from esper.kasmina.hosts import build_host
from esper.kasmina.model import MorphogeneticModel
from esper.leyline.config import AmpDtype, Job, TrainingConfig
from esper.leyline.errors import ConfigError
from esper.leyline.legality import ActionRules
from esper.leyline.probes import ProbeHostSpec
from esper.leyline.tasks import ModuleHostSpec, TaskSpec
from esper.runtime.batches import SharedBatchIterator, batch_size_for, is_augmented
from esper.runtime.contexts import BatchSource, ContextBatches, transformed
from esper.runtime.datasets import Part, TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import RegisteredTask, load_dataset, registered_task
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.contexts import context_of, is_drawn
from esper.tolaria.devices import resolve_device, resolve_env_devices
from esper.tolaria.fences import transfer_to
from esper.tolaria.sharing import BuiltOnce
from esper.tolaria.stopping import StopFlag

__all__ = [
    "WorkerSetup",
    "action_rules",
    "amp_dtype",
    "host_device_types",
    "load_data",
    "prepare_worker",
]

VALIDATION_BATCH: Final = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSetup:
    """A job with everything that its envs need; nothing of it decides or learns."""

    job: Job
    task: TaskSpec
    devices: tuple[torch.device, ...]
    """Of the hosts, one per env of the run."""
    dataset: TensorDataset
    train_batches: BatchSource
    val_batches: BatchSource
    test_batches: Callable[[], BatchSource]
    """Returns what only an evaluation iterates over; built by the first call."""
    rules: ActionRules
    stop: StopFlag
    parts: RunParts
    sabotage_step: int | None = None
    """First step in which a useful seed of every second env is scrambled; None for no sabotage."""

    @property
    def probe(self) -> ProbeHostSpec | None:
        """Return the analytic model that stands in for networks, if the task is a probe."""
        return self.task.host if isinstance(self.task.host, ProbeHostSpec) else None


def load_data(job: Job, stop: StopFlag) -> TensorDataset:
    """Load what a job trains on, from where it says."""
    request = DataRequest(
        source=job.training.data,
        data_dir=None if job.run.data_dir is None else Path(job.run.data_dir),
        check_cancelled=stop.checkpoint,
    )
    return load_dataset(job.training.task, request)


def action_rules(job: Job, task: TaskSpec) -> ActionRules:
    """Return which actions are legal in a job's envs; raise for blueprints that are unknown."""
    config, topology = job.training, task.host.topology
    check_registered(topology, config.blueprints)
    return ActionRules(
        slot_ids=config.slots,
        topology=topology,
        lifecycle=config.lifecycle,
        max_seeds=config.max_seeds,
        added_blueprints=config.blueprints,
    )


def prepare_worker(
    job: Job,
    stop: StopFlag,
    *,
    parts: RunParts,
    dataset: TensorDataset | None = None,
    env_ids: Sequence[int] | None = None,
) -> WorkerSetup:
    """Prepare a job's batches and devices.

    Args:
        job: the job.
        stop: checked while data are loaded.
        parts: what the run is put together from.
        dataset: the job's data, if already loaded.
        env_ids: the envs that the worker owns, if not all: batches are made for these only.
    """
    config = job.training
    registered = registered_task(config.task)
    task = registered.spec
    # Before the data: a network that cannot be a host should not cost a download.
    _check_network(registered, job)
    device = resolve_device(config.device)
    env_devices = resolve_env_devices(config.devices, policy_device=device, n_envs=config.n_envs)
    dataset = load_data(job, stop) if dataset is None else dataset
    _check_inputs(task, dataset)
    iterator = partial(
        _batches_of,
        parts,
        task,
        config,
        dataset,
        n_envs=config.n_envs,
        seed=config.seed,
        devices=env_devices,
        preload=config.gpu_preload,
        transfer=transfer_to,
        check_cancelled=stop.checkpoint,
    )
    if env_ids is not None:
        iterator = partial(iterator, env_ids=env_ids)
    return WorkerSetup(
        job=job,
        task=task,
        devices=env_devices,
        dataset=dataset,
        train_batches=iterator(
            batch_size_per_env=batch_size_for(task, config, len(dataset.train)),
            mode=config.batch_mode or task.batch_mode,
            max_batches=task.max_train_batches,
            augment=is_augmented(dataset, config),
        ),
        val_batches=iterator(batch_size_per_env=VALIDATION_BATCH, part=Part.VAL),
        test_batches=BuiltOnce(
            partial(iterator, batch_size_per_env=VALIDATION_BATCH, part=Part.TEST)
        ),
        rules=action_rules(job, task),
        stop=stop,
        parts=parts,
    )


def _batches_of(
    parts: RunParts, task: TaskSpec, config: TrainingConfig, dataset: TensorDataset, **options: Any
) -> BatchSource:
    """Return the batches of a split; with contexts, those of each env's own."""
    if not any(context.changes_data for context in task.contexts):
        return parts.batch_iterator(dataset, **options)
    num_classes = task.host.num_classes
    sources: dict[str, SharedBatchIterator] = {
        context.name: parts.batch_iterator(transformed(dataset, context, num_classes), **options)
        for context in task.contexts
        if is_drawn(context, config)
    }
    return ContextBatches(
        sources=sources,
        context_of=partial(_name_of_context, task, config),
        num_envs=config.n_envs,
        env_ids=options.get("env_ids") or range(config.n_envs),
    )


def _name_of_context(task: TaskSpec, config: TrainingConfig, round_index: int, env_id: int) -> str:
    drawn = context_of(task, config, round_index, env_id)
    assert drawn is not None, f"task {task.name} has contexts"
    return drawn.name


def _check_network(task: RegisteredTask, job: Job) -> None:
    """Raise unless a network that is not Esper's own can be built here, with every seed."""
    spec, generator = task.spec, torch.Generator()
    # Only building it shows whether it can be a host.
    if task.build_host is not None:
        host = task.build_host(spec, generator)
    elif isinstance(spec.host, ModuleHostSpec):
        host = build_host(spec.host, generator)
    else:
        return
    config = job.training
    model = MorphogeneticModel(host, config.slots, config.lifecycle)
    model.check_blueprints(config.blueprints)


def _check_inputs(task: TaskSpec, dataset: TensorDataset) -> None:
    """Raise unless a network of the user's own takes the data that its task loads."""
    if not isinstance(task.host, ModuleHostSpec):
        return
    shape, num_classes = tuple(dataset.train.inputs.shape[1:]), task.host.num_classes
    if shape != task.host.sample_shape:
        raise ConfigError(
            f"task {task.name!r}: its data have inputs of shape {shape}, its host takes "
            f"sample_shape = {task.host.sample_shape}"
        )
    highest = int(dataset.train.targets.max())
    if highest >= num_classes:
        raise ConfigError(
            f"task {task.name!r}: its data have the label {highest}, its host "
            f"num_classes = {num_classes}"
        )


def amp_dtype(setup: WorkerSetup) -> torch.dtype | None:
    """Return the precision that hosts run in under autocast, or None for full precision."""
    config = setup.job.training
    if not config.amp or config.amp_dtype is AmpDtype.OFF:
        return None
    if config.amp_dtype is AmpDtype.AUTO:
        has_bfloat16 = "cuda" not in host_device_types(setup) or torch.cuda.is_bf16_supported()
        return torch.bfloat16 if has_bfloat16 else torch.float16
    return torch.float16 if config.amp_dtype is AmpDtype.FLOAT16 else torch.bfloat16


def host_device_types(setup: WorkerSetup) -> tuple[str, ...]:
    """Return the types of the hosts' devices, each once."""
    return tuple(sorted({device.type for device in setup.devices}))
