"""Trains a policy on a probe and plays it on held-out envs, seeing or blind."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from esper.leyline.config import Job
from esper.leyline.jobs import merge_job
from esper.leyline.probes import PROBE_PREFIX
from esper.nissa.storage.run_directory import CHECKPOINTS_DIRECTORY
from esper.simic.probes.growth import Fate, draw_fate
from esper.simic.telemetry.phases import PhaseProfiler
from esper.simic.training.assembly.control_assembly import start_control
from esper.simic.training.assembly.engines import build_engine
from esper.simic.training.assembly.machine import one_thread_per_worker
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, prepare_run
from esper.simic.training.checkpoints.checkpoint_store import CheckpointStore
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.checkpoints.resuming import load_run
from esper.simic.training.policy_controller import PolicyController
from esper.simic.training.run_result import TrainingResult
from esper.simic.training.step import StepResult, run_step
from esper.simic.training.vectorized import run_job
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import StopFlag
from tools.probes.solver import Solution

__all__ = [
    "HELD_OUT_SEEDS",
    "Played",
    "job_of",
    "last_checkpoint",
    "play",
    "play_round",
    "setup_of",
    "train",
]

HELD_OUT_SEEDS: Final = (1000, 1001, 1002, 1003)
"""Policies are trained on 1, 2 and 3."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """What a policy earned in some envs."""

    fates: tuple[Fate, ...]
    returns: tuple[float, ...]
    """The task return of each env."""
    steps: tuple[tuple[StepResult, ...], ...]
    """Of each seed."""

    @property
    def mean_return(self) -> float:
        """Return the mean over all envs."""
        return fmean(self.returns)

    def share_of(self, best: Solution) -> float:
        """Return what was earned as a share of what the best policy earns in the same envs."""
        return self.mean_return / fmean(best.return_of(fate) for fate in self.fates)


def job_of(
    name: str, *, seed: int = 1, telemetry_dir: Path | None = None, **training: object
) -> Job:
    """Return the job of a probe, without events and files that nobody reads."""
    layer = {
        "training": {
            "task": PROBE_PREFIX + name,
            "seed": seed,
            "telemetry": {"level": "off"},
            **training,
        },
        "run": {
            "fsync": "never",
            "checkpoint_every": 10_000,
            **({} if telemetry_dir is None else {"telemetry_dir": str(telemetry_dir)}),
        },
    }
    job, _ = merge_job(("probe", layer))
    return job


def setup_of(job: Job, *, command: str = "wait", loaded: LoadedRun | None = None) -> RunSetup:
    """Return the setup of a job."""
    return prepare_run(job, command, loaded, StopFlag(), parts=RunParts())


def train(job: Job) -> TrainingResult:
    """Train a policy."""
    return run_job(job)


def play(checkpoint: Path, seeds: Sequence[int] = HELD_OUT_SEEDS) -> Played:
    """Let the policy of a checkpoint play fresh envs greedily."""
    loaded = load_run(checkpoint)
    fates: list[Fate] = []
    returns: list[float] = []
    steps: list[tuple[StepResult, ...]] = []
    for seed in seeds:
        training = msgspec.structs.replace(loaded.job.training, seed=seed)
        setup = setup_of(
            msgspec.structs.replace(loaded.job, training=training), command="ppo", loaded=loaded
        )
        assert isinstance(setup.controller, PolicyController)
        setup.controller.is_greedy = True
        with one_thread_per_worker():
            done = run_event_loop(partial(play_round, setup), setup.worker.stop)
        ended = {episode.env_id: episode for step in done for episode in step.record.ended}
        fates += [_fate_of(setup, env_id) for env_id in range(training.n_envs)]
        returns += [ended[env_id].task_return for env_id in range(training.n_envs)]
        steps.append(done)
    return Played(fates=tuple(fates), returns=tuple(returns), steps=tuple(steps))


def _fate_of(setup: RunSetup, env_id: int) -> Fate:
    assert setup.worker.probe is not None
    training = setup.job.training
    return draw_fate(
        setup.worker.probe,
        run_seed=training.seed,
        round_index=0,
        env_id=env_id,
        num_seeds=training.max_epochs,
    )


def last_checkpoint(result: TrainingResult) -> Path:
    """Return the checkpoint that a training run has ended with."""
    path = CheckpointStore(result.run_dir / CHECKPOINTS_DIRECTORY).latest()
    assert path is not None, "a finished run has a checkpoint"
    return path


async def play_round(setup: RunSetup) -> tuple[StepResult, ...]:
    """Take the envs of a setup through one round without learning."""
    control = await start_control(setup)
    engine = build_engine(setup.worker)
    try:
        await control.begin_round(0)
        await engine.build_round(0)
        return tuple(
            [
                await run_step(
                    engine,
                    control,
                    step,
                    profiler=PhaseProfiler(is_on=False),
                )
                for step in range(setup.job.training.max_epochs)
            ]
        )
    finally:
        engine.close()
        control.close()
