"""The worker's half of a run: envs, the work done to them, and the lanes it is done on."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from esper.leyline.probes import ProbeHostSpec
from esper.runtime.batches import Batch, SharedBatchIterator
from esper.runtime.tasks import registered_task
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, amp_dtype, host_device_types
from esper.simic.training.batch_ops import Autocast, TrainRules
from esper.simic.training.env_factory import EnvFactoryContext
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.probe_env import ProbeWork
from esper.tamiyo.masks import ActionMasker
from esper.tolaria.engine import EnvWork, LaneEngine

__all__ = ["build_engine", "build_probe_work", "build_work", "env_context"]


def build_engine(
    setup: RunSetup, work: EnvWork[Any, Batch] | None = None
) -> LaneEngine[Any, Batch]:
    """Start the lanes that a run's envs live on; without other work, they do the run's own."""
    probe = setup.probe
    if work is None:
        work = build_work(setup) if probe is None else build_probe_work(setup, probe)
    return LaneEngine(
        num_envs=setup.job.training.n_envs,
        num_lanes=setup.num_lanes,
        work=work,
        batches=_no_batches if probe is not None else partial(_train_pass, setup.train_batches),
        stop=setup.stop,
    )


def build_probe_work(setup: RunSetup, spec: ProbeHostSpec) -> ProbeWork:
    """Build what is done to the envs of a probe."""
    return ProbeWork(
        config=setup.job.training,
        spec=spec,
        action_rules=setup.rules,
        masker=ActionMasker(setup.rules),
    )


def build_work(setup: RunSetup) -> TrainingWork:
    """Build what is done to a run's envs."""
    config = setup.job.training
    return TrainingWork(
        context=env_context(setup),
        rules=TrainRules(
            max_grad_norm=config.max_grad_norm,
            gradient_stride=config.telemetry.gradient_stride,
            autocast=_autocast_of(setup),
        ),
        action_rules=setup.rules,
        masker=ActionMasker(setup.rules),
        validation=partial(setup.val_batches.batches, round=0, step=0),
        testing=partial(_test_pass, setup),
    )


def env_context(setup: RunSetup) -> EnvFactoryContext:
    """Return what the envs of a setup are built from."""
    config = setup.job.training
    return EnvFactoryContext(
        config=config,
        task=setup.task,
        build_host=registered_task(config.task).build_host,
        fences=setup.fences,
        uses_scaler=amp_dtype(setup) is torch.float16,
        run_seed=config.seed,
    )


def _train_pass(
    batches: SharedBatchIterator, round_index: int, step: int
) -> Iterator[Sequence[Batch]]:
    return batches.batches(round=round_index, step=step)


def _no_batches(_round_index: int, _step: int) -> tuple[Sequence[Batch], ...]:
    return ()


def _test_pass(setup: RunSetup) -> Iterator[Sequence[Batch]]:
    return setup.test_batches().batches(round=0, step=0)


def _autocast_of(setup: RunSetup) -> Autocast:
    """Return what makes the precision context of a host's forward pass."""
    dtype = amp_dtype(setup)
    return (
        nullcontext
        if dtype is None
        else partial(_autocast, setup.parts, host_device_types(setup), dtype)
    )


@contextmanager
def _autocast(parts: RunParts, device_types: Sequence[str], dtype: torch.dtype) -> Iterator[None]:
    """Enter autocast for every kind of device that hosts live on; it heeds none but its own."""
    with ExitStack() as stack:
        for device_type in device_types:
            stack.enter_context(parts.autocast(device_type, dtype=dtype))
        yield
