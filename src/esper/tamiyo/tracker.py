"""The signal tracker: computes training signals from one host's results, step by step."""

import math
from dataclasses import dataclass, field

import msgspec

from esper.leyline.signals import HISTORY_LENGTH, TrainingSignals

__all__ = ["Measurement", "SignalTracker", "TrackedStep", "TrackerRules", "TrackerState"]


class TrackerRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thresholds for a stable host and for a plateau."""

    plateau_threshold_pp: float = 0.5
    """A step with a smaller gain in accuracy counts as a plateau step."""
    max_relative_drop: float = 0.03
    """The loss is not stable yet while it falls faster than this per step."""
    max_relative_rise: float = 0.05
    """The loss is not stable if it rises faster than this in a step."""
    min_loss: float = 1e-8
    """Smallest loss for which relative changes are computed."""
    steps_to_stabilize: int = 3
    """Consecutive stable steps after which the host counts as stable; 0: from the start."""
    window: int = 10
    """Number of recent results in the state."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one step's training and validation passes on a host."""

    step: int
    train_loss: float
    train_accuracy_pct: float
    val_loss: float
    val_accuracy_pct: float


class TrackerState(msgspec.Struct, frozen=True, kw_only=True):
    """The complete state of a tracker, in primitives."""

    losses: tuple[float, ...] = ()
    accuracies_pct: tuple[float, ...] = ()
    best_accuracy_pct: float = 0.0
    plateau_steps: int = 0
    stable_steps: int = 0
    is_stabilized: bool = False


class TrackedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A tracker's output for one step."""

    signals: TrainingSignals
    was_latched: bool
    """Whether the host became stable in this step."""


@dataclass(eq=False, slots=True)
class SignalTracker:
    """Tracks one host over an episode."""

    rules: TrackerRules = field(default_factory=TrackerRules)
    state: TrackerState = field(init=False)

    def __post_init__(self) -> None:
        """Set the initial state."""
        self.reset()

    def observe(self, measurement: Measurement) -> TrackedStep:
        """Update the state with a step and return its signals."""
        before, self.state = self.state, advance(self.state, measurement, self.rules)
        return _tracked(before, self.state, measurement)

    def peek(self, measurement: Measurement) -> TrackedStep:
        """Return what `observe` would return, without updating the state."""
        return _tracked(self.state, advance(self.state, measurement, self.rules), measurement)

    def stable_accuracy_pct(self, num_steps: int) -> float | None:
        """Return the lowest accuracy of the last steps; None before the first step."""
        return min(self.state.accuracies_pct[-num_steps:], default=None)

    def reset(self) -> None:
        """Return to the initial state."""
        self.state = TrackerState(is_stabilized=self.rules.steps_to_stabilize == 0)

    def load(self, state: TrackerState) -> None:
        """Continue from a stored state."""
        self.state = state


def advance(state: TrackerState, measurement: Measurement, rules: TrackerRules) -> TrackerState:
    """Return the state after one more step."""
    loss, accuracy = measurement.val_loss, measurement.val_accuracy_pct
    # The first step has nothing to compare with and is no plateau.
    gain = None if not state.accuracies_pct else accuracy - state.accuracies_pct[-1]
    is_plateau = gain is not None and gain < rules.plateau_threshold_pp
    stable_steps = state.stable_steps + 1 if _is_stable(state.losses, loss, rules) else 0
    return TrackerState(
        losses=(*state.losses, loss)[-rules.window :],
        accuracies_pct=(*state.accuracies_pct, accuracy)[-rules.window :],
        best_accuracy_pct=max(state.best_accuracy_pct, accuracy),
        plateau_steps=state.plateau_steps + 1 if is_plateau else 0,
        stable_steps=stable_steps,
        # Latched: a host that was stable once stays so, whatever a new seed does to its loss.
        is_stabilized=state.is_stabilized or stable_steps >= rules.steps_to_stabilize,
    )


def _is_stable(losses: tuple[float, ...], loss: float, rules: TrackerRules) -> bool:
    if not losses or not math.isfinite(losses[-1]) or losses[-1] <= rules.min_loss:
        return False
    # A NaN or infinite loss fails at least one of the two comparisons.
    relative_drop = (losses[-1] - loss) / losses[-1]
    return -rules.max_relative_rise < relative_drop < rules.max_relative_drop


def _tracked(before: TrackerState, after: TrackerState, measurement: Measurement) -> TrackedStep:
    signals = TrainingSignals(
        step=measurement.step,
        train_loss=measurement.train_loss,
        train_accuracy_pct=measurement.train_accuracy_pct,
        val_loss=measurement.val_loss,
        val_accuracy_pct=measurement.val_accuracy_pct,
        loss_delta=before.losses[-1] - measurement.val_loss if before.losses else None,
        accuracy_delta_pp=(
            measurement.val_accuracy_pct - before.accuracies_pct[-1]
            if before.accuracies_pct
            else None
        ),
        plateau_steps=after.plateau_steps,
        stable_steps=after.stable_steps,
        is_stabilized=after.is_stabilized,
        best_val_accuracy_pct=after.best_accuracy_pct,
        loss_history=after.losses[-HISTORY_LENGTH:],
        accuracy_history=after.accuracies_pct[-HISTORY_LENGTH:],
    )
    return TrackedStep(
        signals=signals, was_latched=after.is_stabilized and not before.is_stabilized
    )
