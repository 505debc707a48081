"""One round of a frozen controller: fresh envs grow, are tested, and nothing is learned."""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from esper.leyline.messages import EnvTestResult, StepEvidence, StepOutcome
from esper.leyline.payloads import LaneStalled, TopologyManifestRecorded
from esper.leyline.reports import EpisodeRecord
from esper.leyline.tasks import TaskKind
from esper.simic.telemetry.emitters import topology_manifest
from esper.simic.training.control_assembly import build_control, build_watchdog
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.grown import GrownHeader
from esper.simic.training.run_setup import RunSetup, grown_header
from esper.simic.training.run_state import best_env_of
from esper.simic.training.vectorized_trainer import ControlThread
from esper.simic.training.worker_assembly import build_engine
from esper.tolaria.engine import Engine
from esper.tolaria.lanes import Lane
from esper.tolaria.supervisor import supervise

__all__ = ["GrownNetwork", "EvaluationRound", "evaluate_round"]

ROUND_INDEX: Final = 0
"""Every seed is a run of its own, of one round."""
CLOSE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GrownNetwork:
    """The network that validation likes best, and what it is ranked by."""

    score: float
    state: dict[str, Any]
    header: GrownHeader


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRound:
    """What the envs went through and came to."""

    steps: tuple[StepEvidence, ...]
    tested: tuple[tuple[EnvTestResult | None, ...], ...]
    """Env by env for each step that was tested, the last one among them."""
    episodes: dict[int, EpisodeRecord]
    """By env."""
    topologies: dict[int, TopologyManifestRecorded]
    """By env, of those that reached their end."""
    best: GrownNetwork | None


async def evaluate_round(
    setup: RunSetup, *, work: TrainingWork | None = None, is_tested_each_step: bool = False
) -> EvaluationRound:
    """Take the envs of a setup through one round.

    Networks are tested as validation saw them, before the step's decision.

    Args:
        setup: whose controller decides.
        work: what is done to envs, where it is not the setup's own.
        is_tested_each_step: walk the test split after every step, and not after the last alone.
    """
    lane = Lane("control")
    engine = build_engine(setup, work)
    control = ControlThread(build_control(setup), lane)
    try:
        return await supervise(
            partial(
                _evaluate_round, setup, engine, control, is_tested_each_step=is_tested_each_step
            ),
            background=(),
            watchdog=build_watchdog(
                setup, engine, lane, _log_stacks, "the message before this one"
            ),
        )
    finally:
        await engine.close()
        lane.close(CLOSE_TIMEOUT_S)


async def _evaluate_round(
    setup: RunSetup, engine: Engine, control: ControlThread, *, is_tested_each_step: bool
) -> EvaluationRound:
    last_step = setup.job.training.max_epochs - 1
    steps: list[StepEvidence] = []
    tested: list[tuple[EnvTestResult | None, ...]] = []
    episodes: dict[int, EpisodeRecord] = {}
    await control.begin_round(ROUND_INDEX)
    await engine.build_round(ROUND_INDEX)
    for step in range(last_step + 1):
        await engine.train_pass(step)
        evidence = await engine.validate_pass(step)
        steps.append(evidence)
        if is_tested_each_step or step == last_step:
            tested.append(await engine.test_pass(step))
        if step == last_step:
            best = await _best_of(setup, engine, evidence)
        decision = await control.decide(evidence)
        outcome = await engine.apply(decision)
        record = await control.record(evidence, decision, outcome)
        episodes |= {episode.env_id: episode for episode in record.ended}
    return EvaluationRound(
        steps=tuple(steps),
        tested=tuple(tested),
        episodes=episodes,
        topologies=_topologies(evidence, outcome),
        best=best,
    )


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
    """Tell the operator where every lane is; an evaluation has no log of its own."""
    logging.getLogger(__name__).error("%s hangs\n%s", stalled.lane, stalled.stack)


async def _best_of(setup: RunSetup, engine: Engine, evidence: StepEvidence) -> GrownNetwork | None:
    best = best_env_of(evidence, by_loss=setup.task.kind is TaskKind.LANGUAGE_MODEL)
    state = None if best is None else await engine.snapshot(best.env_id)
    if best is None or state is None:
        return None
    return GrownNetwork(score=best.score, state=state, header=grown_header(setup))
