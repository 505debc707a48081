"""The setup of a run: everything is decided that can go wrong, and nothing is created yet."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch

from esper.leyline.config import AmpDtype, Job
from esper.leyline.legality import ActionRules
from esper.leyline.probes import ProbeHostSpec
from esper.leyline.tasks import TaskKind, TaskSpec
from esper.runtime.batches import SharedBatchIterator, batch_size_for, is_augmented
from esper.runtime.datasets import Part, TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset, registered_task
from esper.simic.training.assembly.controllers import build_controller
from esper.simic.training.assembly.machine import num_lanes_for
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.checkpoints.grown import GrownHeader
from esper.simic.training.policy_controller import PolicyController
from esper.tamiyo.controllers.protocol import Controller
from esper.tolaria.devices import resolve_device, resolve_env_devices
from esper.tolaria.fences import Fence, build_fence, transfer_to
from esper.tolaria.stopping import StopFlag

__all__ = [
    "RunSetup",
    "amp_dtype",
    "grown_header",
    "host_device_types",
    "load_data",
    "prepare_run",
]

VALIDATION_BATCH: Final = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSetup:
    """A job with everything that is decided before anything is created."""

    job: Job
    task: TaskSpec
    command: str
    device: torch.device
    fences: tuple[Fence, ...]
    dataset: TensorDataset
    train_batches: SharedBatchIterator
    val_batches: SharedBatchIterator
    test_batches: Callable[[], SharedBatchIterator]
    """Makes what only an evaluation walks."""
    rules: ActionRules
    controller: Controller
    resumed: LoadedRun | None
    stop: StopFlag
    parts: RunParts

    @property
    def learner(self) -> PolicyController | None:
        """Return the controller if it is one that learns."""
        return self.controller if isinstance(self.controller, PolicyController) else None

    @property
    def probe(self) -> ProbeHostSpec | None:
        """Return the analytic model that stands in for networks, if the task is a probe."""
        return self.task.host if isinstance(self.task.host, ProbeHostSpec) else None

    @property
    def num_lanes(self) -> int:
        """Return the number of threads that the envs are spread over."""
        asked = self.job.run.lanes
        if asked is None and self.probe is not None:
            # A probe is pure Python: further lanes would only wait for the interpreter lock.
            asked = 1
        return num_lanes_for(asked, self.job.training.n_envs)

    @property
    def is_judged_by_loss(self) -> bool:
        """Return whether networks are ranked by lowest loss instead of highest accuracy."""
        return self.task.kind is TaskKind.LANGUAGE_MODEL


def load_data(job: Job, stop: StopFlag) -> TensorDataset:
    """Load what a job trains on, from where it says."""
    request = DataRequest(
        source=job.training.data,
        data_dir=None if job.run.data_dir is None else Path(job.run.data_dir),
        check_cancelled=stop.checkpoint,
    )
    return load_dataset(job.training.task, request)


def prepare_run(
    job: Job,
    command: str,
    resumed: LoadedRun | None,
    stop: StopFlag,
    *,
    parts: RunParts,
    dataset: TensorDataset | None = None,
) -> RunSetup:
    """Decide everything that can go wrong before anything is created.

    A resumed run lends its controller, be it to go on or to be evaluated. Data that
    were loaded for the same job may be lent as well.
    """
    config = job.training
    task = registered_task(config.task).spec
    device = resolve_device(config.device)
    env_devices = resolve_env_devices(config.devices, policy_device=device, n_envs=config.n_envs)
    rules = ActionRules(
        slot_ids=config.slots,
        topology=task.host.topology,
        lifecycle=config.lifecycle,
        max_seeds=config.max_seeds,
    )
    controller = build_controller(
        job, command, rules=rules, device=device, resumed=resumed, parts=parts
    )
    stop.checkpoint()
    dataset = load_data(job, stop) if dataset is None else dataset
    batch_size = batch_size_for(task, config, len(dataset.train))
    iterator = partial(
        parts.batch_iterator,
        dataset,
        n_envs=config.n_envs,
        seed=config.seed,
        devices=env_devices,
        preload=config.gpu_preload,
        transfer=transfer_to,
        check_cancelled=stop.checkpoint,
    )
    return RunSetup(
        job=job,
        task=task,
        command=command,
        device=device,
        fences=tuple(build_fence(env_devices[i % len(env_devices)]) for i in range(config.n_envs)),
        dataset=dataset,
        train_batches=iterator(
            batch_size_per_env=batch_size,
            mode=config.batch_mode or task.batch_mode,
            max_batches=task.max_train_batches,
            augment=is_augmented(dataset, config),
        ),
        val_batches=iterator(batch_size_per_env=VALIDATION_BATCH, part=Part.VAL),
        test_batches=partial(iterator, batch_size_per_env=VALIDATION_BATCH, part=Part.TEST),
        rules=rules,
        controller=controller,
        resumed=resumed,
        stop=stop,
        parts=parts,
    )


def amp_dtype(setup: RunSetup) -> torch.dtype | None:
    """Return the precision that hosts run in under autocast, or None for full precision."""
    config = setup.job.training
    if not config.amp or config.amp_dtype is AmpDtype.OFF:
        return None
    if config.amp_dtype is AmpDtype.AUTO:
        has_bfloat16 = "cuda" not in host_device_types(setup) or torch.cuda.is_bf16_supported()
        return torch.bfloat16 if has_bfloat16 else torch.float16
    return torch.float16 if config.amp_dtype is AmpDtype.FLOAT16 else torch.bfloat16


def host_device_types(setup: RunSetup) -> tuple[str, ...]:
    """Return the kinds of devices that hosts live on, each once."""
    return tuple(sorted({fence.device.type for fence in setup.fences}))


def grown_header(setup: RunSetup) -> GrownHeader:
    """Return what has to be known of the networks that a setup grows."""
    config, scale = setup.job.training, setup.dataset.pixel_scale
    is_custom = registered_task(config.task).build_host is not None
    return GrownHeader(
        task=config.task,
        host=None if is_custom else setup.task.host,
        slots=config.slots,
        lifecycle=config.lifecycle,
        pixel_mean=None if scale is None else scale.mean,
        pixel_std=None if scale is None else scale.std,
    )
