"""The worker's half of a run: envs, the work done to them, and the lanes it is done on."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

import torch

from esper.runtime.batches import Batch, SharedBatchIterator
from esper.runtime.tasks import registered_task
from esper.simic.training.assembly.machine import num_lanes_for
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, amp_dtype, host_device_types
from esper.simic.training.batch_ops import Autocast, TrainRules
from esper.simic.training.env_factory import EnvFactoryContext
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.tamiyo.masks import ActionMasker
from esper.tolaria.engine import LaneEngine

__all__ = ["build_engine", "build_work", "env_context"]


def build_engine(
    setup: RunSetup, work: TrainingWork | None = None
) -> LaneEngine[ParallelEnvState, Batch]:
    """Start the lanes of a run's envs; `work` replaces the work of the run."""
    config = setup.job.training
    return LaneEngine(
        num_envs=config.n_envs,
        num_lanes=num_lanes_for(setup.job.run.lanes, config.n_envs),
        work=build_work(setup) if work is None else work,
        batches=partial(_train_pass, setup.train_batches),
        stop=setup.stop,
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
    """Enter autocast for each device type of the hosts, as each instance affects only one."""
    with ExitStack() as stack:
        for device_type in device_types:
            stack.enter_context(parts.autocast(device_type, dtype=dtype))
        yield
