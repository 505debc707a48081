"""One round with a frozen controller: fresh envs grow and are tested; nothing is learned."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from esper.leyline.actions import Op
from esper.leyline.engine_payloads import LaneStalled
from esper.leyline.episodes import is_last_step
from esper.leyline.messages import EnvTestResult, StepEvidence, StepOutcome
from esper.leyline.payloads import TopologyManifestRecorded
from esper.leyline.reports import EpisodeRecord
from esper.leyline.schedules import Schedule, ScheduledAction, scheduled
from esper.simic.telemetry.emitters import topology_manifest
from esper.simic.telemetry.phases import PhaseProfiler
from esper.simic.training.assembly.control_assembly import build_watchdog, start_control
from esper.simic.training.assembly.engines import build_engine
from esper.simic.training.assembly.run_setup import RunSetup, grown_header
from esper.simic.training.assembly.worker_assembly import Topologies
from esper.simic.training.checkpoints.grown import GrownHeader
from esper.simic.training.checkpoints.run_state import best_env_of
from esper.simic.training.step import ControlThread, StepResult, run_step
from esper.tolaria.engine import WorkerEngine
from esper.tolaria.supervisor import supervise

__all__ = ["ROUND_INDEX", "GrownNetwork", "EvaluationRound", "evaluate_round"]

ROUND_INDEX: Final = 0
"""Every seed is a separate run of one round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrownNetwork:
    """The network with the best validation score, and that score."""

    score: float
    state: dict[str, Any]
    header: GrownHeader


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRound:
    """The results of one round."""

    steps: tuple[StepEvidence, ...]
    tested: tuple[tuple[EnvTestResult | None, ...], ...]
    """Env by env for each step that was tested, the last one among them."""
    episodes: dict[int, EpisodeRecord]
    """By env."""
    topologies: dict[int, TopologyManifestRecorded]
    """By env, of those that reached their end."""
    actions: dict[int, Schedule]
    """By env, what succeeded; waiting is left out."""
    best: GrownNetwork | None


async def evaluate_round(
    setup: RunSetup, *, topologies: Topologies | None = None, is_tested_each_step: bool = False
) -> EvaluationRound:
    """Take the envs of a setup through one round.

    Networks are tested as validation saw them, before the step's decision.

    Args:
        setup: the run to evaluate, with its controller.
        topologies: networks that envs are built with instead of an empty host.
        is_tested_each_step: evaluate on the test split after every step, not only the last.
    """
    control = await start_control(setup)
    engine = build_engine(setup.worker, topologies)
    evaluation = _Evaluation(setup, engine, control, is_tested_each_step=is_tested_each_step)
    try:
        return await supervise(
            evaluation.run,
            background=(),
            watchdog=build_watchdog(
                setup, engine, control, _log_stacks, "the message before this one"
            ),
        )
    finally:
        engine.close()
        control.close()


@dataclass(eq=False, slots=True)
class _Evaluation:
    """One round in progress."""

    setup: RunSetup
    engine: WorkerEngine
    control: ControlThread
    is_tested_each_step: bool
    tested: list[tuple[EnvTestResult | None, ...]] = field(default_factory=list)
    best: GrownNetwork | None = None

    async def run(self) -> EvaluationRound:
        """Take the envs from their first step to their last."""
        await self.control.begin_round(ROUND_INDEX)
        await self.engine.build_round(ROUND_INDEX)
        done = [await self._step(step) for step in range(self.setup.job.training.max_epochs)]
        return EvaluationRound(
            steps=tuple(item.evidence for item in done),
            tested=tuple(self.tested),
            episodes={episode.env_id: episode for item in done for episode in item.record.ended},
            topologies=_topologies(done[-1].evidence, done[-1].outcome),
            actions=_actions(done, self.setup.job.training.n_envs),
            best=self.best,
        )

    async def _step(self, step: int) -> StepResult:
        return await run_step(
            self.engine,
            self.control,
            step,
            profiler=PhaseProfiler(is_on=False),
            before_decisions=self._test if self._is_tested(step) else None,
        )

    def _is_tested(self, step: int) -> bool:
        return self.is_tested_each_step or self._is_last(step)

    def _is_last(self, step: int) -> bool:
        return is_last_step(step, self.setup.job.training.max_epochs)

    async def _test(self, evidence: StepEvidence) -> None:
        """Test the networks as they were validated; after the last step, copy the best one."""
        self.tested.append(await self.engine.test_pass(evidence.step))
        if self._is_last(evidence.step):
            self.best = await self._best_of(evidence)

    async def _best_of(self, evidence: StepEvidence) -> GrownNetwork | None:
        best = best_env_of(evidence, by_loss=self.setup.is_judged_by_loss)
        state = None if best is None else await self.engine.snapshot(best.env_id)
        if best is None or state is None:
            return None
        header = grown_header(self.setup, ROUND_INDEX, best.env_id)
        return GrownNetwork(score=best.score, state=state, header=header)


def _actions(done: Sequence[StepResult], num_envs: int) -> dict[int, Schedule]:
    """Return what was done to each env."""
    rows: dict[int, list[ScheduledAction]] = {env_id: [] for env_id in range(num_envs)}
    for item in done:
        for env in item.outcome.envs:
            if (
                env is not None
                and env.outcome.succeeded
                and env.outcome.effective_op is not Op.WAIT
            ):
                rows[env.env_id].append(scheduled(item.outcome.step, env.outcome.action))
    return {env_id: tuple(found) for env_id, found in rows.items()}


def _topologies(
    evidence: StepEvidence, outcome: StepOutcome
) -> dict[int, TopologyManifestRecorded]:
    """Describe the envs' networks after the last step, as a run records them."""
    return {
        env.env_id: topology_manifest(seen.host_params, env.reports)
        for seen, env in zip(evidence.envs, outcome.envs, strict=True)
        if seen is not None and env is not None
    }


def _log_stacks(stalled: LaneStalled) -> None:
    """Log the stacks of all lanes; an evaluation has no event log."""
    logging.getLogger(__name__).error("%s hangs\n%s", stalled.lane, stalled.stack)
