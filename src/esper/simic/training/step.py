"""One step of all envs: train, validate, decide, apply, record; shared by training and evaluation.

Also home of `ControlThread`, through which the event loop reaches control.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

from esper.leyline.messages import StepDecision, StepEvidence, StepOutcome, StepRecord
from esper.simic.telemetry.phases import PhaseProfiler
from esper.simic.training.control import Control, RoundResult
from esper.tolaria.engine import WorkerEngine
from esper.tolaria.lanes import Lane

__all__ = ["ControlThread", "StepResult", "run_step"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ControlThread:
    """Runs control on a separate thread, so that torch work never runs on the event loop."""

    control: Control
    lane: Lane = field(default_factory=partial(Lane, "control"))

    async def begin_round(self, round_index: int) -> None:
        """Reset control's ledgers and counters for a new round."""
        await self.run(self.control.begin_round, round_index)

    async def decide(self, evidence: StepEvidence) -> StepDecision:
        """Choose one action per env."""
        return await self.run(self.control.decide, evidence)

    async def record(
        self, evidence: StepEvidence, decision: StepDecision, outcome: StepOutcome
    ) -> StepRecord:
        """Compute the rewards of a step and add it to the rollout."""
        return await self.run(self.control.record, evidence, decision, outcome)

    async def learn(self) -> RoundResult:
        """Update the controller on the finished round."""
        return await self.run(self.control.learn)

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call on the control thread, in order with control's own work."""
        return await self.lane.run(call, *args, **kwargs)

    def close(self) -> None:
        """Stop the thread after the calls that are queued."""
        self.lane.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """The messages of one finished step."""

    evidence: StepEvidence
    decision: StepDecision
    outcome: StepOutcome
    record: StepRecord


async def run_step(
    engine: WorkerEngine,
    control: ControlThread,
    step: int,
    *,
    profiler: PhaseProfiler,
    after_validation: Callable[[StepEvidence], Awaitable[None]],
) -> StepResult:
    """Take all envs through one step.

    Args:
        engine: trains, validates and changes the envs.
        control: decides and computes rewards.
        step: counts from 0 within the round.
        profiler: measures the phases.
        after_validation: awaited before the decision, while the networks are as they were
            validated: the moment to test or to copy them.
    """
    with profiler.phase("train"):
        await engine.train_pass(step)
    with profiler.phase("validate"):
        evidence = await engine.validate_pass(step)
        # Inside the phase: outside, the time that it takes would belong to none.
        await after_validation(evidence)
    with profiler.phase("decide"):
        decision = await control.decide(evidence)
    with profiler.phase("apply"):
        outcome = await engine.apply(decision)
    with profiler.phase("record"):
        record = await control.record(evidence, decision, outcome)
    return StepResult(evidence=evidence, decision=decision, outcome=outcome, record=record)
