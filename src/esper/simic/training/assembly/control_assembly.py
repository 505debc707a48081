"""The control half of a run: control with its reward scheme, its watchdog, its first event."""

from collections.abc import Callable
from functools import partial

import torch

from esper.leyline.config import CompileMode, TrainingConfig
from esper.leyline.engine_payloads import LaneStalled
from esper.leyline.payloads import TrainingStarted
from esper.leyline.telemetry import SCHEMA_VERSION
from esper.simic.rewards.scheme import scheme_of
from esper.simic.training.assembly.machine import compile_mode_for, num_lanes_for
from esper.simic.training.assembly.run_setup import RunSetup
from esper.simic.training.assembly.worker_assembly import env_context
from esper.simic.training.assembly.worker_setup import WorkerSetup, amp_dtype
from esper.simic.training.control import Control
from esper.simic.training.env_factory import build_model
from esper.simic.training.step import ControlThread
from esper.tamiyo.blind import SwappedExtractor
from esper.tamiyo.features import FeatureExtractor
from esper.tamiyo.masks import ActionMasker
from esper.tolaria.engine import WorkerEngine
from esper.tolaria.lanes import Lane
from esper.tolaria.supervisor import Watchdog
from esper.version import __version__

__all__ = ["build_watchdog", "start_control", "started_event"]


def _build_control(setup: RunSetup) -> Control:
    """Build the control of a run, which connects its envs with its controller."""
    config = setup.job.training
    return Control(
        controller=setup.controller,
        scheme=scheme_of(config, setup.task),
        rules=setup.worker.rules,
        extractor=_extractor_of(config),
        masker=ActionMasker(setup.worker.rules),
        num_envs=config.n_envs,
        num_steps=config.max_epochs,
        death_penalty=config.governor.death_penalty,
        success_accuracy_pct=setup.task.success_accuracy_pct,
        updates_per_round=config.ppo_updates_per_batch,
        check_cancelled=setup.worker.stop.checkpoint,
    )


def _extractor_of(config: TrainingConfig) -> FeatureExtractor:
    if config.blind:
        return SwappedExtractor(
            config.slots, config.max_epochs, config.blueprints, seed=config.seed
        )
    return FeatureExtractor(config.slots, config.max_epochs, config.blueprints)


async def start_control(setup: RunSetup) -> ControlThread:
    """Start the control of a run on its thread, with its policy compiled if it is to be.

    Compiling happens in the first call, on the thread that makes it, and may take longer than the
    watchdog allows a thread to be silent. Hence it is done here, before the watchdog starts.
    """
    control = ControlThread(_build_control(setup))
    config, learner = setup.job.training, setup.learner
    is_compiled = compile_mode_for(config.compile_mode, setup.device) is not CompileMode.OFF
    if learner is not None and is_compiled:
        await control.run(learner.agent.network.warm_up, config.n_envs)
    return control


def build_watchdog(
    setup: RunSetup,
    engine: WorkerEngine,
    control: ControlThread,
    report: Callable[[LaneStalled], object],
    reported_in: str,
) -> Watchdog:
    """Build what notices that one of a run's threads hangs."""
    return Watchdog(
        lanes=partial(_threads_of, engine, control.lane),
        env_ids_of=engine.env_ids_of,
        deadline_s=setup.job.run.lane_deadline_s,
        stop=setup.worker.stop,
        report=report,
        end_silent_workers=engine.end_silent_workers,
        reported_in=reported_in,
    )


def _threads_of(engine: WorkerEngine, lane: Lane) -> tuple[Lane, ...]:
    return (*engine.lanes, lane)


def started_event(setup: RunSetup) -> TrainingStarted:
    """Return the TRAINING_STARTED event of a run."""
    config, run = setup.job.training, setup.job.run
    dtype = amp_dtype(setup.worker)
    return TrainingStarted(
        esper_version=__version__,
        schema_version=SCHEMA_VERSION,
        controller=setup.command,
        task=config.task,
        preset=config.preset,
        data_source=setup.worker.dataset.origin.value,
        topology=setup.task.host.topology.value,
        host_params=_num_host_params(setup.worker),
        slot_ids=config.slots,
        num_rounds=config.n_episodes,
        num_envs=config.n_envs,
        num_steps=config.max_epochs,
        seed=config.seed,
        reward_family=config.reward_family.value,
        reward_mode=config.reward_mode.value,
        telemetry_level=config.telemetry.level,
        policy_params=None if setup.learner is None else _num_params(setup.learner.agent.network),
        policy_device=str(setup.device),
        env_devices=tuple(sorted({str(device) for device in setup.worker.devices})),
        num_lanes=num_lanes_for(run.lanes, config.n_envs),
        amp_dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        compile_mode=config.compile_mode.value,
        torch_version=str(torch.__version__),
        resumed_from_round=None,
    )


def _num_host_params(setup: WorkerSetup) -> int:
    if setup.probe is not None:
        return setup.probe.num_params
    return build_model(env_context(setup), 0, 0).num_host_params


def _num_params(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
