"""Emitters: build events from the results of a run. Formatting only; no training state changes.

Each passes its drafts to `emit`, which appends them to the list published for the whole step.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from esper.leyline.actions import Head, causal_heads
from esper.leyline.effects import EnvEffect
from esper.leyline.messages import DecisionDetail, EnvEvidence, EnvOutcome
from esper.leyline.payloads import (
    ActionDistribution,
    BatchEpochCompleted,
    CounterfactualUnavailable,
    EpochCompleted,
    LastAction,
    LayerGradient,
    LayerGradientsCollected,
    MaskHitRates,
    Payload,
    PerformanceDegradation,
    PPOUpdateCompleted,
    RewardSummary,
    SeedSnapshot,
    Throughput,
    TopologyManifestRecorded,
    TopologySlot,
)
from esper.leyline.reports import BatchSummary, SeedReport
from esper.leyline.rewards import RewardComponents
from esper.leyline.telemetry import Draft, EventScope

__all__ = [
    "Emit",
    "aggregate_layer_gradient_health",
    "apply_slot_telemetry",
    "check_performance_degradation",
    "compute_grad_norm_surrogate",
    "emit_action_distribution",
    "emit_batch_completed",
    "emit_cf_unavailable",
    "emit_epoch_completed",
    "emit_last_action",
    "emit_mask_hit_rates",
    "emit_ppo_update_event",
    "emit_reward_summary",
    "emit_throughput",
    "emit_with_env_context",
    "topology_manifest",
]

Emit: TypeAlias = Callable[[Draft], None]

DEAD_HEALTH: Final = 0.0
EXPLODING_HEALTH: Final = 0.1
DEGRADATION_FRACTION: Final = 0.10
"""A round this far below the rolling mean raises a warning."""
WARMUP_FRACTION: Final = 0.10
"""Initial fraction of training in which fluctuations raise no warning."""


def emit_with_env_context(emit: Emit, payloads: Iterable[Payload], scope: EventScope) -> None:
    """Emit payloads as events of one env's step."""
    for payload in payloads:
        emit(Draft(payload, scope))


def apply_slot_telemetry(emit: Emit, effects: Iterable[EnvEffect], scope: EventScope) -> None:
    """Emit the events of an env's slots, in the order in which they occurred."""
    emit_with_env_context(emit, (effect.payload for effect in effects), scope)


def compute_grad_norm_surrogate(evidence: EnvEvidence) -> float | None:
    """Return the joint gradient norm of host and measured seeds, or None if not measured.

    Seeds are sampled on a different batch than the rest of the pass, hence a surrogate.
    """
    if evidence.host_gradient_norm is None:
        return None
    seeds = [report.gradient.norm for report in evidence.reports if report.gradient is not None]
    return math.hypot(evidence.host_gradient_norm, *seeds)


def emit_epoch_completed(emit: Emit, evidence: EnvEvidence, scope: EventScope) -> None:
    """Emit the training and validation results of an env's epoch."""
    signals = evidence.signals
    payload = EpochCompleted(
        train_loss=signals.train_loss,
        train_accuracy_pct=signals.train_accuracy_pct,
        val_loss=signals.val_loss,
        val_accuracy_pct=signals.val_accuracy_pct,
        host_gradient_norm=evidence.host_gradient_norm,
        network_gradient_norm=compute_grad_norm_surrogate(evidence),
        seeds=tuple(_snapshot_of(report) for report in evidence.reports),
    )
    emit(Draft(payload, scope))


def _snapshot_of(report: SeedReport) -> SeedSnapshot:
    gradient = report.gradient
    return SeedSnapshot(
        slot_id=report.slot_id,
        stage=report.stage.name,
        blueprint=report.blueprint,
        alpha=report.alpha.alpha,
        steps_in_stage=report.steps_in_stage,
        age_steps=report.age_steps,
        contribution_pp=report.contribution_pp,
        contribution_velocity_pp=report.contribution_velocity_pp,
        stage_improvement_pp=report.stage_improvement_pp,
        interaction_sum_pp=report.interaction_sum_pp,
        boost_received_pp=report.boost_received_pp,
        upstream_alpha_sum=report.upstream_alpha_sum,
        downstream_alpha_sum=report.downstream_alpha_sum,
        gradient_norm=None if gradient is None else gradient.norm,
        gradient_ratio=None if gradient is None else gradient.ratio,
        gradient_health=None if gradient is None else gradient.health,
        has_vanishing_gradient=None if gradient is None else gradient.has_vanishing,
        has_exploding_gradient=None if gradient is None else gradient.has_exploding,
    )


def emit_cf_unavailable(emit: Emit, evidence: EnvEvidence, scope: EventScope) -> None:
    """Report that contributions of active seeds are unavailable because validation failed."""
    slot_ids = tuple(seed.slot_id for seed in evidence.attribution.seeds)
    reason = f"validation loss is {evidence.signals.val_loss}"
    emit(Draft(CounterfactualUnavailable(slot_ids=slot_ids, reason=reason), scope))


def emit_last_action(
    emit: Emit,
    outcome: EnvOutcome,
    detail: DecisionDetail | None,
    reward: float,
    components: RewardComponents,
    scope: EventScope,
    *,
    is_forced: bool,
) -> None:
    """Emit an env's decision and its outcome, without the heads that were irrelevant for its op."""
    action, result = outcome.outcome.action, outcome.outcome
    matters = causal_heads(action.op)
    payload = LastAction(
        op=action.op.name,
        effective_op=result.effective_op.name,
        slot_id=action.slot_id if Head.SLOT in matters else None,
        blueprint=action.blueprint if Head.BLUEPRINT in matters else None,
        style=action.style.name if Head.STYLE in matters else None,
        tempo=action.tempo.name if Head.TEMPO in matters else None,
        alpha_target=action.alpha_target.name if Head.ALPHA_TARGET in matters else None,
        alpha_speed=action.alpha_speed.name if Head.ALPHA_SPEED in matters else None,
        alpha_curve=action.alpha_curve.name if Head.ALPHA_CURVE in matters else None,
        succeeded=result.succeeded,
        is_forced=is_forced,
        veto_reason=result.veto_reason,
        failure_reason=result.failure_reason,
        value_estimate=None if detail is None else detail.value_estimate,
        op_probabilities={} if detail is None else detail.op_probabilities,
        heads={} if detail is None else detail.heads,
        reward=reward,
        reward_components=components,
    )
    emit(Draft(payload, scope))


def topology_manifest(host_params: int, reports: Sequence[SeedReport]) -> TopologyManifestRecorded:
    """Return the topology of the network formed by a host and these seeds."""
    return TopologyManifestRecorded(
        host_params=host_params,
        total_params=host_params + sum(report.num_params for report in reports),
        slots=tuple(_topology_slot(report) for report in reports),
    )


def _topology_slot(report: SeedReport) -> TopologySlot:
    return TopologySlot(
        slot_id=report.slot_id,
        seed_id=report.seed_id,
        blueprint=report.blueprint,
        stage=report.stage.name,
        alpha=report.alpha.alpha,
        alpha_target=report.alpha.target,
        style=report.style.name,
        num_params=report.num_params,
        germinated_at_step=report.germinated_at_step,
        kept_at_step=report.fossilized_at_step,
        contribution_pp=report.contribution_pp,
    )


def emit_batch_completed(emit: Emit, summary: BatchSummary, episodes_completed: int) -> None:
    """Emit the summary of a finished round."""
    payload = BatchEpochCompleted(
        episodes_completed=episodes_completed,
        mean_accuracy_pct=summary.mean_accuracy_pct,
        rolling_accuracy_pct=summary.rolling_accuracy_pct,
        mean_reward=summary.mean_reward,
        mean_task_return=summary.mean_task_return,
        env_accuracies_pct=tuple(record.final_accuracy_pct for record in summary.episodes),
        env_rewards=tuple(record.total_reward for record in summary.episodes),
    )
    emit(Draft(payload, EventScope(round=summary.round)))


def emit_ppo_update_event(emit: Emit, payload: PPOUpdateCompleted, round_index: int) -> None:
    """Emit the metrics of an update."""
    emit(Draft(payload, EventScope(round=round_index)))


def emit_action_distribution(emit: Emit, payload: ActionDistribution, round_index: int) -> None:
    """Emit how often each op was chosen."""
    emit(Draft(payload, EventScope(round=round_index)))


def emit_mask_hit_rates(emit: Emit, payload: MaskHitRates, round_index: int) -> None:
    """Emit how often each op was legal."""
    emit(Draft(payload, EventScope(round=round_index)))


def emit_reward_summary(
    emit: Emit,
    mean_components: RewardComponents,
    mean_reward: float,
    reward_scale: float | None,
    round_index: int,
) -> None:
    """Emit the mean reward components of a round."""
    payload = RewardSummary(
        mean_components=mean_components,
        mean_reward=mean_reward,
        hindsight_credit=mean_components.hindsight_credit,
        reward_scale=reward_scale,
    )
    emit(Draft(payload, EventScope(round=round_index)))


def emit_throughput(
    emit: Emit,
    *,
    round_index: int,
    env_steps: int,
    train_samples: int,
    val_samples: int,
    feeder_wait_s: float,
    duration_s: float,
) -> None:
    """Emit the throughput of a round."""
    payload = Throughput(
        env_steps=env_steps,
        train_samples=train_samples,
        val_samples=val_samples,
        env_steps_per_s=env_steps / max(duration_s, 1e-9),
        feeder_wait_s=feeder_wait_s,
        duration_s=duration_s,
    )
    emit(Draft(payload, EventScope(round=round_index)))


def aggregate_layer_gradient_health(layers: Sequence[LayerGradient]) -> LayerGradientsCollected:
    """Combine the per-layer gradients of a network and count the unhealthy layers."""
    healths = [layer.health for layer in layers if layer.health is not None]
    return LayerGradientsCollected(
        layers=tuple(layers),
        num_dead=sum(health <= DEAD_HEALTH for health in healths),
        num_exploding=sum(DEAD_HEALTH < health <= EXPLODING_HEALTH for health in healths),
    )


def check_performance_degradation(
    emit: Emit, summary: BatchSummary, *, rolling_before_pct: float | None, progress: float
) -> None:
    """Emit a warning if a round is well below the rolling mean of previous rounds."""
    accuracy = summary.mean_accuracy_pct
    if accuracy is None or not rolling_before_pct or progress < WARMUP_FRACTION:
        return
    drop = (rolling_before_pct - accuracy) / rolling_before_pct
    if drop >= DEGRADATION_FRACTION:
        payload = PerformanceDegradation(
            accuracy_pct=accuracy,
            rolling_accuracy_pct=rolling_before_pct,
            drop_fraction=drop,
            threshold_fraction=DEGRADATION_FRACTION,
            training_progress=progress,
        )
        emit(Draft(payload, EventScope(round=summary.round)))
