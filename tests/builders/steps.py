"""Takes an engine through the passes of a step with all of its envs together."""

from esper.leyline.messages import StepDecision, StepEvidence, StepOutcome
from esper.tolaria.engine import WorkerEngine

__all__ = ["all_evidence", "applied"]


async def all_evidence(engine: WorkerEngine, step: int) -> StepEvidence:
    """Train and validate all envs."""
    engine.start_step(step)
    evidence = await engine.next_evidence()
    assert evidence is not None
    assert await engine.next_evidence() is None
    return evidence


async def applied(engine: WorkerEngine, decision: StepDecision) -> StepOutcome:
    """Apply the decisions of all envs."""
    engine.apply(decision, range(len(decision.actions)))
    return await engine.outcome()
