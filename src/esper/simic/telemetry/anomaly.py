"""The anomaly detector: finds anomalies in an update's metrics, with state across updates."""

import math
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from esper.leyline.actions import HEAD_SPECS, HEADS
from esper.leyline.payloads import (
    EntropyCollapseDetected,
    GradientPathologyDetected,
    HeadUpdate,
    KlSpikeDetected,
    LstmAnomalyDetected,
    LstmHealth,
    NumericalInstabilityDetected,
    Payload,
    PPOUpdateCompleted,
    RatioCollapseDetected,
    RatioExplosionDetected,
    ValueCollapseDetected,
)

__all__ = [
    "AnomalyRules",
    "AnomalyState",
    "detect_anomalies",
    "note_idle_update",
    "note_skipped_update",
]


class AnomalyRules(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of the anomaly detector."""

    max_ratio: float = 5.0
    min_ratio: float = 0.1
    max_value_error: float = 5.0
    """Threshold for the value loss and the mean absolute TD error."""
    kl_spike: float = 0.5
    """Per decision; the KL stop of the recipes ends an update at 0.15 or 0.3."""
    collapse_updates: int = 3
    """Consecutive updates below a head's collapse threshold."""
    collapse_release: float = 1.5
    """A collapse ends when entropy exceeds this multiple of the threshold."""
    max_lstm_rms: float = 10.0
    min_lstm_rms: float = 1e-6
    drift_fraction: float = 0.5
    drift_memory: float = 0.99
    max_gradient_norm: float = 100.0
    min_gradient_norm: float = 1e-7
    skips_to_halt: int = 3


RULES: Final = AnomalyRules()


class AnomalyState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the detector; part of a checkpoint."""

    low_entropy_streaks: dict[str, int] = {}
    gradient_norm_mean: float | None = None
    gradient_health_mean: float | None = None
    consecutive_skips: int = 0


def detect_anomalies(
    state: AnomalyState,
    update: PPOUpdateCompleted,
    unstable: tuple[str, ...] = (),
) -> tuple[AnomalyState, tuple[Payload, ...]]:
    """Check a completed update; return the new state and the alarms.

    `unstable` names its metrics that are not finite.
    """
    # Hysteresis: entropy that wavers around its threshold does not start the count again each time.
    streaks = _streaks(state.low_entropy_streaks, update.heads)
    norm, health = update.gradient_norm, _gradient_health(update.gradient_norm)
    alarms = (
        *_ratio_alarms(update),
        *_value_alarms(update),
        *_numeric_alarms(update, unstable),
        *_kl_alarms(update),
        *_entropy_alarms(streaks, update.heads),
        *_lstm_alarms(update.lstm_rollout),
        *_drift_alarm("norm", norm, state.gradient_norm_mean),
        *_drift_alarm("health", health, state.gradient_health_mean),
    )
    after = AnomalyState(
        low_entropy_streaks=streaks,
        # After the drift was judged: compared with a mean that contains it, a jump would look
        # smaller.
        gradient_norm_mean=_running_mean(state.gradient_norm_mean, norm),
        gradient_health_mean=_running_mean(state.gradient_health_mean, health),
    )
    return after, alarms


def note_skipped_update(
    state: AnomalyState, where: tuple[str, ...]
) -> tuple[AnomalyState, NumericalInstabilityDetected]:
    """Count an update that was skipped because of nonfinite values."""
    skips = state.consecutive_skips + 1
    alarm = NumericalInstabilityDetected(
        where=where, consecutive_skips=skips, is_halting=skips >= RULES.skips_to_halt
    )
    return msgspec.structs.replace(state, consecutive_skips=skips), alarm


def note_idle_update(state: AnomalyState) -> AnomalyState:
    """Reset the skip count after a round without optimizer steps but with finite values."""
    return msgspec.structs.replace(state, consecutive_skips=0)


def _ratio_alarms(update: PPOUpdateCompleted) -> Iterator[Payload]:
    # A hint where to look: the head with the largest ratio of its own.
    worst = max(update.heads, key=lambda head: update.heads[head].ratio_max or 0.0, default=None)
    if update.ratio_max is not None and update.ratio_max > RULES.max_ratio:
        yield RatioExplosionDetected(
            ratio=update.ratio_max, threshold=RULES.max_ratio, worst_head=worst
        )
    if update.ratio_min is not None and update.ratio_min < RULES.min_ratio:
        yield RatioCollapseDetected(
            ratio=update.ratio_min, threshold=RULES.min_ratio, worst_head=None
        )


def _value_alarms(update: PPOUpdateCompleted) -> Iterator[Payload]:
    # Explained variance is unreliable here: its denominator vanishes with the returns' variance.
    errors = (update.value_loss, update.bellman_error)
    is_off = any(error is not None and error > RULES.max_value_error for error in errors)
    if is_off and update.usable_steps > 0:
        yield ValueCollapseDetected(
            value_loss=update.value_loss,
            bellman_error=update.bellman_error,
            threshold=RULES.max_value_error,
        )


def _numeric_alarms(update: PPOUpdateCompleted, unstable: tuple[str, ...]) -> Iterator[Payload]:
    counts = (
        ("nan_gradients", update.nan_gradient_count),
        ("inf_gradients", update.inf_gradient_count),
    )
    where = (*unstable, *(name for name, count in counts if count))
    if where or update.num_finiteness_skips:
        yield NumericalInstabilityDetected(where=where, consecutive_skips=0, is_halting=False)


def _kl_alarms(update: PPOUpdateCompleted) -> Iterator[Payload]:
    if update.kl_divergence is not None and update.kl_divergence > RULES.kl_spike:
        yield KlSpikeDetected(kl_divergence=update.kl_divergence, threshold=RULES.kl_spike)


def _streaks(before: Mapping[str, int], heads: Mapping[str, HeadUpdate]) -> dict[str, int]:
    """Count updates below the threshold; between it and the release threshold, keep the count."""
    after: dict[str, int] = {}
    for head in HEADS:
        entropy = heads[head].entropy if head in heads else None
        streak, threshold = before.get(head, 0), HEAD_SPECS[head].collapse_threshold
        if entropy is not None and entropy < threshold:
            streak += 1
        elif entropy is not None and entropy > RULES.collapse_release * threshold:
            streak = 0
        if streak:
            after[head.value] = streak
    return after


def _entropy_alarms(
    streaks: Mapping[str, int], heads: Mapping[str, HeadUpdate]
) -> Iterator[Payload]:
    for head in HEADS:
        streak = streaks.get(head, 0)
        entropy = heads[head].entropy if head in heads else None
        if streak >= RULES.collapse_updates and entropy is not None:
            yield EntropyCollapseDetected(
                head=head.value,
                entropy=entropy,
                threshold=HEAD_SPECS[head].collapse_threshold,
                consecutive_updates=streak,
            )


def _lstm_alarms(health: LstmHealth | None) -> Iterator[Payload]:
    if health is None:
        return
    figures = (
        ("h", health.h_rms, health.h_env_rms_max),
        ("c", health.c_rms, health.c_env_rms_max),
    )
    for name, rms, env_max in figures:
        if rms is None or not math.isfinite(rms):
            yield LstmAnomalyDetected(kind="nonfinite", state=name, rms=rms)
        elif rms < RULES.min_lstm_rms:
            yield LstmAnomalyDetected(kind="vanishing", state=name, rms=rms)
        # The largest env, not the mean: one exploding state disappears among many healthy ones.
        elif env_max is not None and env_max > RULES.max_lstm_rms:
            yield LstmAnomalyDetected(kind="exploding", state=name, rms=env_max)


def _gradient_health(norm: float | None) -> float | None:
    if norm is None:
        return None
    return 1.0 if RULES.min_gradient_norm <= norm <= RULES.max_gradient_norm else 0.3


def _drift_alarm(quantity: str, value: float | None, mean: float | None) -> Iterator[Payload]:
    if value is None or not mean or not math.isfinite(value):
        return
    drift = abs(value - mean) / mean
    if drift > RULES.drift_fraction:
        yield GradientPathologyDetected(
            quantity=quantity, value=value, running_mean=mean, drift_fraction=drift
        )


def _running_mean(mean: float | None, value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return mean
    if mean is None:
        return value
    return RULES.drift_memory * mean + (1 - RULES.drift_memory) * value
