"""What an env's training and validation passes showed, as the evidence that decisions use."""

from collections.abc import Sequence
from dataclasses import dataclass

from esper.leyline.attribution import AttributionEvidence
from esper.leyline.messages import EnvEvidence, Panic
from esper.simic.attribution.configurations import AblationPlan
from esper.simic.training.counterfactual_eval import coalitions_of
from esper.simic.training.env_episode import EnvEpisode
from esper.tamiyo.tracker import Measurement

__all__ = ["PassReadings", "observe_pass"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PassReadings:
    """The numbers that one step's passes have measured."""

    losses: Sequence[float]
    """Of each ablation of the plan, as are the accuracies."""
    accuracies_pct: Sequence[float]
    attribution: AttributionEvidence
    train_loss: float
    train_accuracy_pct: float
    host_params: int
    seed_params: int
    train_samples: int
    trial_samples: int
    val_samples: int
    panic: Panic | None


def observe_pass(
    env: EnvEpisode,
    step: int,
    plan: AblationPlan,
    readings: PassReadings,
    *,
    stable_window: int,
) -> EnvEvidence:
    """Record what was measured in the env's seeds and tracker, and return the evidence.

    Args:
        env: the env; the evidence is kept for the step's decision.
        step: counts from 0 within the episode.
        plan: the ablations that were measured.
        readings: what was measured.
        stable_window: steps whose lowest accuracy counts as the stable one.
    """
    # First, because the reports in the evidence contain what was just measured.
    _note_attribution(env, readings.attribution)
    tracked = env.signal_tracker.observe(
        Measurement(
            step=step,
            train_loss=readings.train_loss,
            train_accuracy_pct=readings.train_accuracy_pct,
            val_loss=readings.losses[0],
            val_accuracy_pct=readings.accuracies_pct[0],
        )
    )
    env.evidence = EnvEvidence(
        env_id=env.env_idx,
        signals=tracked.signals,
        reports=env.reports,
        attribution=readings.attribution,
        coalitions=coalitions_of(plan, readings.losses, readings.accuracies_pct),
        strategy=plan.strategy.value,
        stable_accuracy_pct=env.signal_tracker.stable_accuracy_pct(stable_window) or 0.0,
        host_params=readings.host_params,
        total_params=readings.host_params + readings.seed_params,
        host_gradient_norm=env.host_gradient_norm,
        became_stable=tracked.was_latched,
        panic=readings.panic,
        train_samples=readings.train_samples,
        trial_samples=readings.trial_samples,
        val_samples=readings.val_samples,
        alarms=env.alarms,
    )
    return env.evidence


def _note_attribution(env: EnvEpisode, attribution: AttributionEvidence) -> None:
    for slot in env.slots():
        slot.record_accuracy(attribution.accuracy_pct)
        seed = attribution.of(slot.slot_id)
        if slot.state is None:
            continue
        if seed is None:
            # Not measured in this pass: the values of an earlier one would describe other
            # neighbours.
            slot.record_interaction(None, None)
        else:
            slot.record_contribution(seed.contribution_pp)
            slot.record_interaction(seed.interaction_sum_pp, seed.boost_received_pp)
