"""Converts lifecycle effects to the payloads of seed events."""

from esper.kasmina.lifecycle import (
    Effect,
    Fossilized,
    GateEvaluated,
    Germinated,
    Pruned,
    StageChanged,
)
from esper.kasmina.seed import SeedState, difference
from esper.leyline.payloads import (
    Payload,
    SeedFossilized,
    SeedGateEvaluated,
    SeedGerminated,
    SeedPruned,
    SeedStageChanged,
)

__all__ = ["payload_of"]


def payload_of(slot_id: str, num_params: int, effect: Effect) -> Payload | None:
    """Return the event payload of an effect, or None for an effect without an event."""
    match effect:
        case Germinated(seed):
            return _germinated(slot_id, num_params, seed)
        case GateEvaluated():
            return _gate_evaluated(slot_id, effect)
        case StageChanged():
            return _stage_changed(slot_id, effect)
        case Fossilized(seed):
            return _fossilized(slot_id, num_params, seed)
        case Pruned():
            return _pruned(slot_id, effect)
        case _:
            return None


def _germinated(slot_id: str, num_params: int, seed: SeedState) -> SeedGerminated:
    return SeedGerminated(
        slot_id=slot_id,
        seed_id=seed.seed_id,
        blueprint=seed.blueprint,
        num_params=num_params,
        style=seed.style.name,
        tempo_steps=seed.tempo_steps,
        alpha_target=seed.alpha_target,
    )


def _gate_evaluated(slot_id: str, effect: GateEvaluated) -> SeedGateEvaluated:
    result = effect.result
    return SeedGateEvaluated(
        slot_id=slot_id,
        seed_id=effect.seed_id,
        gate=result.gate.name,
        target_stage=result.target.name,
        passed=result.passed,
        score=result.score,
        checks_passed=result.checks_passed,
        checks_failed=result.checks_failed,
    )


def _stage_changed(slot_id: str, effect: StageChanged) -> SeedStageChanged:
    return SeedStageChanged(
        slot_id=slot_id,
        seed_id=effect.seed_id,
        from_stage=effect.from_stage.name,
        to_stage=effect.to_stage.name,
        alpha=effect.alpha,
        steps_in_from_stage=effect.steps_in_from_stage,
        accuracy_delta_pp=effect.accuracy_delta_pp,
    )


def _fossilized(slot_id: str, num_params: int, seed: SeedState) -> SeedFossilized:
    measured = seed.measured
    current = measured.current_accuracy_pct
    return SeedFossilized(
        slot_id=slot_id,
        seed_id=seed.seed_id,
        blueprint=seed.blueprint,
        num_params=num_params,
        age_steps=seed.age_steps,
        contribution_pp=measured.contribution_pp,
        improvement_pp=difference(current, measured.accuracy_at_germination_pct),
        blending_delta_pp=difference(current, measured.accuracy_at_blending_start_pct),
    )


def _pruned(slot_id: str, effect: Pruned) -> SeedPruned:
    seed, measured = effect.seed, effect.seed.measured
    current = measured.current_accuracy_pct
    return SeedPruned(
        slot_id=slot_id,
        seed_id=seed.seed_id,
        blueprint=seed.blueprint,
        reason=effect.cause.reason,
        initiator=effect.cause.initiator,
        age_steps=seed.age_steps,
        contribution_pp=measured.contribution_pp,
        improvement_pp=difference(current, measured.accuracy_at_germination_pct),
        blending_delta_pp=difference(current, measured.accuracy_at_blending_start_pct),
    )
