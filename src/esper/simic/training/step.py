"""One step of all envs: train, validate, decide, apply, record; shared by training and evaluation.

Also home of `ControlThread`, through which the event loop reaches control.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, ParamSpec, TypeVar

from esper.leyline.messages import (
    StepDecision,
    StepEvidence,
    StepOutcome,
    StepRecord,
    merge_decisions,
    merge_evidence,
)
from esper.simic.telemetry.phases import PhaseProfiler
from esper.simic.training.control import Control, RoundResult
from esper.tolaria.engine import WorkerEngine
from esper.tolaria.lanes import Lane

__all__ = ["ControlThread", "StepResult", "run_step"]

P = ParamSpec("P")
T = TypeVar("T")

MIN_DECIDED_SHARE: Final = 0.25
"""Share of the envs to wait for before a decision.

A forward pass of the policy has rows for all envs, however few are decided: with many workers, one
for each would cost too much.
"""


@dataclass(frozen=True, slots=True)
class ControlThread:
    """Runs control on a separate thread, so that torch work never runs on the event loop."""

    control: Control
    lane: Lane = field(default_factory=partial(Lane, "control"))

    async def begin_round(self, round_index: int) -> None:
        """Reset control's ledgers and counters for a new round."""
        await self.run(self.control.begin_round, round_index)

    @property
    def decides_jointly(self) -> bool:
        """Return whether a decision waits for the evidence of all envs."""
        return self.control.decides_jointly

    async def decide(self, evidence: StepEvidence) -> StepDecision:
        """Choose one action for each env of the evidence."""
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
    before_decisions: Callable[[StepEvidence], Awaitable[None]] | None = None,
) -> StepResult:
    """Take all envs through one step.

    Envs are decided as soon as a few of their workers have validated them, and go on at once.

    Args:
        engine: trains, validates and changes the envs.
        control: decides and computes rewards.
        step: counts from 0 within the round.
        profiler: measures the phases.
        before_decisions: awaited with the evidence of all envs, while the networks are as they
            were validated: the moment to test or to copy them. All envs are then decided together.
    """
    is_joint = before_decisions is not None or control.decides_jointly
    seen: list[StepEvidence] = []
    decided: list[StepDecision] = []
    engine.start_step(step)
    while True:
        with profiler.phase("passes"):
            part = await engine.next_evidence(1.0 if is_joint else MIN_DECIDED_SHARE)
            if part is None:
                break
            if before_decisions is not None:
                await before_decisions(part)
        with profiler.phase("decide"):
            decision = await control.decide(part)
        engine.apply(decision, part.env_ids)
        seen.append(part)
        decided.append(decision)
    evidence, decision = merge_evidence(seen), merge_decisions(decided)
    with profiler.phase("apply"):
        outcome = await engine.outcome()
    with profiler.phase("record"):
        record = await control.record(evidence, decision, outcome)
    return StepResult(evidence=evidence, decision=decision, outcome=outcome, record=record)
