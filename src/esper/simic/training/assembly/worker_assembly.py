"""The worker's half of a run: envs, the work done to them, and the lanes it is done on."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from esper.leyline.payloads import TopologyManifestRecorded
from esper.leyline.probes import ProbeHostSpec
from esper.runtime.batches import Batch
from esper.runtime.contexts import BatchSource
from esper.runtime.tasks import registered_task
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.worker_setup import (
    WorkerSetup,
    amp_dtype,
    host_device_types,
)
from esper.simic.training.batch_ops import Autocast, TrainRules
from esper.simic.training.env_factory import EnvFactoryContext
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.probe_env import ProbeWork
from esper.simic.training.static_work import StaticWork
from esper.tamiyo.masks import ActionMasker
from esper.tolaria.fences import Fence
from esper.tolaria.pulse import Pulse
from esper.tolaria.worker import Worker, lane_fences

__all__ = [
    "Topologies",
    "build_probe_work",
    "build_work",
    "build_worker",
    "env_context",
    "held_out_pass",
]

Topologies = Mapping[int, TopologyManifestRecorded]
"""Networks that envs are built with instead of an empty host, by env; usually none."""


def build_worker(
    setup: WorkerSetup,
    env_ids: Sequence[int],
    *,
    lanes: int,
    topologies: Topologies,
    has_feeder: bool = True,
    pulse: Pulse | None = None,
) -> Worker[Any, Batch]:
    """Start the lanes of a worker that owns some of a run's envs; see `Worker`."""
    probe = setup.probe
    return Worker(
        env_ids=env_ids,
        num_lanes=lanes,
        work=build_probe_work(setup, probe)
        if probe
        else build_work(setup, topologies, lane_fences(setup.devices, env_ids, lanes)),
        batches=_no_batches if probe else partial(_train_pass, setup.train_batches),
        stop=setup.stop,
        has_feeder=has_feeder,
        pulse=pulse,
    )


def build_probe_work(setup: WorkerSetup, spec: ProbeHostSpec) -> ProbeWork:
    """Build what is done to the envs of a probe."""
    return ProbeWork(
        config=setup.job.training,
        spec=spec,
        sabotage_step=setup.sabotage_step,
        task=setup.task,
        action_rules=setup.rules,
        masker=ActionMasker(setup.rules),
    )


def build_work(
    setup: WorkerSetup,
    topologies: Topologies | None = None,
    fences: Mapping[int, Fence] | None = None,
) -> TrainingWork:
    """Build what is done to a run's envs; without fences, those of a single lane."""
    config = setup.job.training
    work = TrainingWork(
        context=env_context(setup, fences),
        rules=TrainRules(
            max_grad_norm=config.max_grad_norm,
            gradient_stride=config.telemetry.gradient_stride,
            autocast=_autocast_of(setup),
        ),
        action_rules=setup.rules,
        masker=ActionMasker(setup.rules),
        validation=partial(held_out_pass, setup.val_batches),
        testing=partial(_test_pass, setup),
        sabotage_step=setup.sabotage_step,
    )
    return StaticWork.of(work, topologies) if topologies else work


def env_context(setup: WorkerSetup, fences: Mapping[int, Fence] | None = None) -> EnvFactoryContext:
    """Return what the envs of a setup are built from; without fences, those of a single lane."""
    config = setup.job.training
    if fences is None:
        fences = lane_fences(setup.devices, range(config.n_envs), 1)
    return EnvFactoryContext(
        config=config,
        task=setup.task,
        build_host=registered_task(config.task).build_host,
        fences=fences,
        uses_scaler=amp_dtype(setup) is torch.float16,
        run_seed=config.seed,
    )


def _train_pass(batches: BatchSource, round_index: int, step: int) -> Iterator[Sequence[Batch]]:
    return batches.batches(round=round_index, step=step)


def _no_batches(_round_index: int, _step: int) -> tuple[Sequence[Batch], ...]:
    return ()


def held_out_pass(batches: BatchSource, round_index: int) -> Iterator[Sequence[Batch]]:
    """Iterate over a held-out split as the envs of a round see it."""
    return batches.batches(round=round_index, step=0)


def _test_pass(setup: WorkerSetup, round_index: int) -> Iterator[Sequence[Batch]]:
    return held_out_pass(setup.test_batches(), round_index)


def _autocast_of(setup: WorkerSetup) -> Autocast:
    """Return what makes the precision context of a host's forward pass."""
    dtype = amp_dtype(setup)
    return (
        nullcontext
        if dtype is None
        else partial(_autocast, setup.parts, host_device_types(setup), dtype)
    )


@contextmanager
def _autocast(parts: RunParts, device_types: Sequence[str], dtype: torch.dtype) -> Iterator[None]:
    """Enter autocast for each device type of the hosts, as each instance affects only one."""
    with ExitStack() as stack:
        for device_type in device_types:
            stack.enter_context(parts.autocast(device_type, dtype=dtype))
        yield
