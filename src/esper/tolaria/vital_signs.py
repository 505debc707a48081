"""Detection of failed hosts: a pure state machine over validation losses."""

import math
import statistics

import msgspec

from esper.leyline.config import GovernorConfig
from esper.leyline.messages import Panic, PanicReason

__all__ = ["VitalSigns", "after_rollback", "check_vital_signs"]


class VitalSigns(msgspec.Struct, frozen=True, kw_only=True):
    """The governor's state for one env."""

    losses: tuple[float, ...] = ()
    """Recent normal losses; anomalous losses are never added."""
    consecutive_anomalies: int = 0


def check_vital_signs(
    signs: VitalSigns, loss: float, *, random_guess_loss: float, config: GovernorConfig
) -> tuple[VitalSigns, Panic | None]:
    """Check one validation loss and update the state.

    Args:
        signs: the state before this step.
        loss: the loss of the full network, never of an ablation.
        random_guess_loss: ln(number of classes), the reference for detecting a lobotomy.
        config: thresholds.

    Returns:
        The new state, and a panic if the env has to be rolled back.
    """
    is_lobotomy = _is_lobotomy(signs.losses, loss, random_guess_loss, config)
    # The divergence threshold is never below the absolute one, so it need not be computed for a
    # loss under the absolute threshold.
    is_usual = math.isfinite(loss) and loss <= config.absolute_threshold and not is_lobotomy
    threshold = None if is_usual else _divergence_threshold(signs.losses, config)
    if not math.isfinite(loss):
        # At once, without counting to three: weights that gave a NaN do not recover.
        return signs, _panic(PanicReason.NAN, loss, threshold, signs)
    if is_lobotomy:
        return signs, _panic(PanicReason.LOBOTOMY, loss, threshold, signs)
    if threshold is None or loss <= threshold:
        # A normal loss also resets the count: only consecutive anomalies are a divergence.
        kept = (*signs.losses, loss)[-config.history_window :]
        return VitalSigns(losses=kept), None
    counted = VitalSigns(losses=signs.losses, consecutive_anomalies=signs.consecutive_anomalies + 1)
    if counted.consecutive_anomalies < config.panics_to_rollback:
        return counted, None
    return counted, _panic(PanicReason.DIVERGENCE, loss, threshold, counted)


def after_rollback(signs: VitalSigns) -> VitalSigns:
    """Return the state with the history of normal losses and the anomaly count reset to 0."""
    return VitalSigns(losses=signs.losses)


def _divergence_threshold(losses: tuple[float, ...], config: GovernorConfig) -> float | None:
    """Return the loss above which all three tests (absolute, deviation, multiple) fail."""
    if len(losses) < config.min_samples:
        return None
    mean = statistics.fmean(losses)
    deviation = config.sensitivity * statistics.pstdev(losses)
    # All three must be exceeded: with a small deviation or a small mean, noise alone would exceed
    # one of the relative bounds.
    return max(config.absolute_threshold, mean + deviation, config.loss_multiplier * mean)


def _is_lobotomy(
    losses: tuple[float, ...], loss: float, random_guess_loss: float, config: GovernorConfig
) -> bool:
    if len(losses) < config.min_samples:
        return False
    # A network that has collapsed to a constant predicts at chance, a loss that is finite and below
    # every threshold.
    guesses_now = abs(loss - random_guess_loss) < config.lobotomy_tolerance * random_guess_loss
    return guesses_now and statistics.fmean(losses) < config.lobotomy_prior * random_guess_loss


def _panic(reason: PanicReason, loss: float, threshold: float | None, signs: VitalSigns) -> Panic:
    return Panic(
        reason=reason,
        loss=loss,
        threshold=threshold,
        consecutive_anomalies=signs.consecutive_anomalies,
    )
