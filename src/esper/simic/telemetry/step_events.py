"""A step's events, in their published order: what was seen, then what was done, env by env."""

import math
from collections.abc import Iterable

from esper.leyline.messages import (
    EnvEvidence,
    EnvFailure,
    EnvOutcome,
    PenaltyOutcome,
    StepDecision,
    StepEvidence,
    StepOutcome,
    StepRecord,
)
from esper.leyline.payloads import (
    CounterfactualMatrixComputed,
    EnvFailed,
    EpisodeOutcome,
    GovernorRollback,
    ShapleyComputed,
    ShapleyValue,
    TamiyoInitiated,
)
from esper.leyline.reports import EpisodeRecord
from esper.leyline.telemetry import Draft, EventScope
from esper.simic.telemetry.emitters import (
    Emit,
    apply_slot_telemetry,
    emit_cf_unavailable,
    emit_epoch_completed,
    emit_last_action,
    emit_with_env_context,
)

__all__ = ["evidence_events", "failure_events", "outcome_events"]


def scope_of(round_index: int, step: int | None, env_id: int, num_envs: int) -> EventScope:
    """Return where in the run an env's step is."""
    return EventScope(
        round=round_index, step=step, env_id=env_id, episode_id=round_index * num_envs + env_id
    )


def failure_events(
    emit: Emit,
    failures: Iterable[EnvFailure],
    *,
    round_index: int,
    num_envs: int,
    episodes: dict[int, EpisodeRecord],
) -> None:
    """Tell which envs broke, and close the books of their episodes."""
    for failure in failures:
        scope = scope_of(round_index, failure.step, failure.env_id, num_envs)
        payload = EnvFailed(
            phase=failure.phase.value,
            batch=failure.batch,
            slot_id=failure.slot_id,
            layer=failure.layer,
            error_type=failure.error_type,
            message=failure.message,
        )
        emit(Draft(payload, scope))
        emit(Draft(_episode_outcome(episodes[failure.env_id]), scope))


def evidence_events(emit: Emit, evidence: StepEvidence, *, required_stable_steps: int) -> None:
    """Tell what the passes have shown."""
    num_envs = len(evidence.envs)
    present = [
        (env, scope_of(evidence.round, evidence.step, env.env_id, num_envs))
        for env in evidence.envs
        if env is not None
    ]
    for env, scope in present:
        _emit_counterfactuals(emit, env, scope)
    for env, scope in present:
        emit_epoch_completed(emit, env, scope)
        emit_with_env_context(emit, env.alarms, scope)
        if env.became_stable:
            payload = TamiyoInitiated(
                stable_steps=env.signals.stable_steps,
                required_steps=required_stable_steps,
                val_loss=env.signals.val_loss,
            )
            emit(Draft(payload, scope))


def outcome_events(
    emit: Emit,
    decision: StepDecision,
    outcome: StepOutcome,
    record: StepRecord,
    *,
    penalties: dict[int, PenaltyOutcome],
    death_penalty: float,
    episodes: dict[int, EpisodeRecord],
) -> None:
    """Tell what the decisions came to, env by env."""
    num_envs = len(outcome.envs)
    for env in outcome.envs:
        if env is None:
            continue
        scope = scope_of(outcome.round, outcome.step, env.env_id, num_envs)
        apply_slot_telemetry(emit, env.action_events, scope)
        if env.rollback is not None:
            _emit_rollback(emit, env, penalties.get(env.env_id), death_penalty, scope)
        reward, components = record.rewards[env.env_id], record.components[env.env_id]
        if reward is not None and components is not None:
            detail = decision.details[env.env_id]
            emit_last_action(emit, env, detail, reward, components, scope)
        suspicions = (payload for env_id, payload in record.alarms if env_id == env.env_id)
        emit_with_env_context(emit, suspicions, scope)
        apply_slot_telemetry(emit, env.tick_events, scope)
        if env.env_id in episodes:
            emit(Draft(_episode_outcome(episodes[env.env_id]), scope))


def _emit_counterfactuals(emit: Emit, env: EnvEvidence, scope: EventScope) -> None:
    attribution = env.attribution
    if not env.coalitions:
        return
    if not math.isfinite(env.signals.val_loss):
        emit_cf_unavailable(emit, env, scope)
        return
    matrix = CounterfactualMatrixComputed(
        strategy=env.strategy,
        slot_ids=tuple(
            seed.slot_id for seed in attribution.seeds if seed.attributed_pp is not None
        ),
        coalitions=env.coalitions,
        committed_accuracy_pct=attribution.committed_accuracy_pct,
    )
    emit(Draft(matrix, scope))
    if attribution.shapley:
        values = tuple(
            ShapleyValue(
                slot_id=estimate.player,
                mean_pp=estimate.mean,
                std_pp=estimate.std,
                num_samples=estimate.num_samples,
            )
            for estimate in attribution.shapley
        )
        emit(Draft(ShapleyComputed(is_exact=attribution.is_exact, values=values), scope))


def _emit_rollback(
    emit: Emit,
    env: EnvOutcome,
    penalty: PenaltyOutcome | None,
    death_penalty: float,
    scope: EventScope,
) -> None:
    assert env.rollback is not None
    panic = env.rollback.panic
    blamed = None if penalty is None else penalty.blamed_step
    payload = GovernorRollback(
        reason=panic.reason.value,
        loss_at_panic=panic.loss,
        loss_threshold=panic.threshold,
        consecutive_panics=panic.consecutive_anomalies,
        penalty=-death_penalty,
        is_penalty_attributed=blamed is not None,
        blamed_step=blamed,
        num_steps_forfeited=0 if penalty is None else penalty.num_steps_forfeited,
        pruned_slots=env.rollback.pruned_slots,
    )
    emit(Draft(payload, scope))


def _episode_outcome(record: EpisodeRecord) -> EpisodeOutcome:
    names = EpisodeOutcome.__struct_fields__
    values = {name: getattr(record, name) for name in names}
    return EpisodeOutcome(**{**values, "status": record.status.value})
