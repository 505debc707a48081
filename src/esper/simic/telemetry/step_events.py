"""The events of a step in published order: evidence of all envs, then outcomes, env by env."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from esper.leyline.episodes import episode_id_of
from esper.leyline.messages import (
    EnvEvidence,
    EnvFailure,
    EnvOutcome,
    PenaltyOutcome,
    RollbackReport,
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
    ObservationStats,
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
    topology_manifest,
)

__all__ = ["StepRules", "step_events"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRules:
    """Configuration values that appear in the events of steps."""

    required_stable_steps: int
    """Number of steps after which a host counts as stable."""
    penalty: float
    """Penalty of a rollback."""


def step_events(
    evidence: StepEvidence,
    decision: StepDecision,
    outcome: StepOutcome,
    record: StepRecord,
    *,
    rules: StepRules,
    observation_stats: ObservationStats | None = None,
) -> list[Draft]:
    """Return all events of a step, in order.

    Envs that failed before the decision come first; an env that failed while executing its
    decision is reported in env order among the others.
    """
    drafts: list[Draft] = []
    emit = drafts.append
    ended = {episode.env_id: episode for episode in record.ended}
    for failure in evidence.failures:
        _emit_failure(emit, failure, ended[failure.env_id])
    _emit_evidence(emit, evidence, ended, rules)
    if observation_stats is not None:
        emit(Draft(observation_stats, EventScope(round=evidence.round, step=evidence.step)))
    failures = {failure.env_id: failure for failure in outcome.failures}
    for env_id, (seen, env) in enumerate(zip(evidence.envs, outcome.envs, strict=True)):
        if env is not None:
            _emit_outcome(emit, env, decision, record, rules)
            if seen is not None and env_id in ended:
                _emit_end(emit, seen, env, ended[env_id])
        elif env_id in failures:
            _emit_failure(emit, failures[env_id], ended[env_id])
    return drafts


def scope_of(round_index: int, step: int | None, env_id: int, num_envs: int) -> EventScope:
    """Return the event scope of an env's step."""
    return EventScope(
        round=round_index,
        step=step,
        env_id=env_id,
        episode_id=episode_id_of(round_index, env_id, num_envs=num_envs),
    )


def _emit_failure(emit: Emit, failure: EnvFailure, episode: EpisodeRecord) -> None:
    """Emit the failure of an env and the outcome of its episode."""
    scope = EventScope(
        round=episode.round,
        step=failure.step,
        env_id=failure.env_id,
        episode_id=episode.episode_id,
    )
    payload = EnvFailed(
        phase=failure.phase.value,
        batch=failure.batch,
        slot_id=failure.slot_id,
        layer=failure.layer,
        error_type=failure.error_type,
        message=failure.message,
    )
    emit(Draft(payload, scope))
    emit(Draft(_episode_outcome(episode), scope))


def _emit_evidence(
    emit: Emit, evidence: StepEvidence, ended: Mapping[int, EpisodeRecord], rules: StepRules
) -> None:
    """Emit the results of the train and validation passes."""
    num_envs = len(evidence.envs)
    present = [
        (env, scope_of(evidence.round, evidence.step, env.env_id, num_envs))
        for env in evidence.envs
        if env is not None
    ]
    for env, scope in present:
        _emit_counterfactuals(emit, env, scope, is_last=env.env_id in ended)
    for env, scope in present:
        emit_epoch_completed(emit, env, scope)
        emit_with_env_context(emit, env.alarms, scope)
        if env.became_stable:
            payload = TamiyoInitiated(
                stable_steps=env.signals.stable_steps,
                required_steps=rules.required_stable_steps,
                val_loss=env.signals.val_loss,
            )
            emit(Draft(payload, scope))


def _emit_outcome(
    emit: Emit,
    env: EnvOutcome,
    decision: StepDecision,
    record: StepRecord,
    rules: StepRules,
) -> None:
    """Emit the outcome of one env's decision."""
    env_id = env.env_id
    scope = scope_of(decision.round, decision.step, env_id, len(decision.actions))
    apply_slot_telemetry(emit, env.action_effects, scope)
    penalty = record.penalties[env_id]
    if env.rollback is not None and penalty is not None:
        _emit_rollback(emit, env.rollback, penalty, rules.penalty, scope)
    reward, components = record.rewards[env_id], record.components[env_id]
    if reward is not None and components is not None:
        emit_last_action(
            emit,
            env,
            decision.details[env_id],
            reward,
            components,
            scope,
            is_forced=record.is_forced[env_id],
        )
    suspicions = (payload for owner, payload in record.alarms if owner == env_id)
    emit_with_env_context(emit, suspicions, scope)
    apply_slot_telemetry(emit, env.tick_effects, scope)


def _emit_end(emit: Emit, seen: EnvEvidence, env: EnvOutcome, episode: EpisodeRecord) -> None:
    """Record the network at the end of an episode, and the episode's outcome."""
    scope = EventScope(
        round=episode.round,
        step=seen.signals.step,
        env_id=episode.env_id,
        episode_id=episode.episode_id,
    )
    emit(Draft(topology_manifest(seen.host_params, env.reports), scope))
    emit(Draft(_episode_outcome(episode), scope))


def _emit_counterfactuals(
    emit: Emit, env: EnvEvidence, scope: EventScope, *, is_last: bool
) -> None:
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
    if attribution.shapley and is_last:
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
    rollback: RollbackReport,
    penalty: PenaltyOutcome,
    amount: float,
    scope: EventScope,
) -> None:
    panic = rollback.panic
    payload = GovernorRollback(
        reason=panic.reason.value,
        loss_at_panic=panic.loss,
        loss_threshold=panic.threshold,
        consecutive_panics=panic.consecutive_anomalies,
        penalty=amount,
        is_penalty_attributed=penalty.blamed_step is not None,
        blamed_step=penalty.blamed_step,
        num_steps_forfeited=penalty.num_steps_forfeited,
        pruned_slots=rollback.pruned_slots,
        active_slot=rollback.active_slot,
        active_stage=None if rollback.active_slot is None else rollback.active_stage.name,
    )
    emit(Draft(payload, scope))


def _episode_outcome(record: EpisodeRecord) -> EpisodeOutcome:
    names = EpisodeOutcome.__struct_fields__
    values = {name: getattr(record, name) for name in names}
    return EpisodeOutcome(**{**values, "status": record.status.value})
