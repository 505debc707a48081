"""The tracker, against what its signals are defined to be."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.tamiyo.tracker import Measurement, SignalTracker, TrackerRules


def measured(step: int, loss: float = 1.0, accuracy: float = 50.0) -> Measurement:
    return Measurement(
        step=step,
        train_loss=loss,
        train_accuracy_pct=accuracy,
        val_loss=loss,
        val_accuracy_pct=accuracy,
    )


def track(tracker: SignalTracker, losses: list[float], accuracies: list[float] | None = None):
    accuracies = [50.0] * len(losses) if accuracies is None else accuracies
    pairs = enumerate(zip(losses, accuracies, strict=True))
    return [tracker.observe(measured(step, loss, accuracy)) for step, (loss, accuracy) in pairs]


series = st.lists(
    st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 100.0)), min_size=1, max_size=25
).map(lambda pairs: tuple(zip(*pairs, strict=True)))


@settings(max_examples=60, deadline=None)
@given(series)
def test_signals_are_what_the_whole_past_says(past) -> None:
    losses, accuracies = (list(values) for values in past)
    steps = track(SignalTracker(), losses, accuracies)
    for index, step in enumerate(steps):
        signals = step.signals
        assert signals.best_val_accuracy_pct == max(accuracies[: index + 1])
        assert signals.loss_history == tuple(losses[max(0, index - 4) : index + 1])
        assert signals.accuracy_history == tuple(accuracies[max(0, index - 4) : index + 1])
        if index > 0:
            assert signals.loss_delta == losses[index - 1] - losses[index]
            assert signals.accuracy_delta_pp == accuracies[index] - accuracies[index - 1]


def test_the_first_step_has_no_deltas() -> None:
    signals = SignalTracker().observe(measured(0)).signals
    assert signals.loss_delta is None
    assert signals.accuracy_delta_pp is None
    assert signals.plateau_steps == 0


def test_plateau_counts_small_gains_in_a_row() -> None:
    steps = track(SignalTracker(), [1.0] * 5, [50.0, 50.4, 50.3, 51.0, 51.0])
    assert [step.signals.plateau_steps for step in steps] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("loss", "is_stable"),
    [(0.975, True), (0.96, False), (1.04, True), (1.06, False), (1.5, False), (math.nan, False)],
)
def test_a_stable_step_is_bounded_on_both_sides(loss: float, is_stable: bool) -> None:
    steps = track(SignalTracker(), [1.0, loss])
    assert steps[-1].signals.stable_steps == int(is_stable)


@pytest.mark.parametrize("loss", [math.nan, math.inf, 0.0])
def test_no_step_is_stable_after_a_loss_that_says_nothing(loss: float) -> None:
    steps = track(SignalTracker(), [loss, loss])
    assert steps[-1].signals.stable_steps == 0


def test_the_latch_is_set_once_and_stays() -> None:
    steps = track(SignalTracker(), [1.0, 1.0, 1.0, 1.0, 5.0, 5.0])
    assert [step.was_latched for step in steps] == [False, False, False, True, False, False]
    assert [step.signals.is_stabilized for step in steps] == [False] * 3 + [True] * 3


def test_an_unstable_step_starts_the_count_again() -> None:
    steps = track(SignalTracker(), [1.0, 1.0, 1.0, 2.0, 2.0])
    assert [step.signals.stable_steps for step in steps] == [0, 1, 2, 0, 1]


def test_a_host_may_count_as_stable_from_the_start() -> None:
    tracker = SignalTracker(TrackerRules(steps_to_stabilize=0))
    first = tracker.observe(measured(0))
    assert first.signals.is_stabilized
    assert not first.was_latched
    tracker.reset()
    assert tracker.state.is_stabilized


def test_peek_says_what_observe_would_and_remembers_nothing() -> None:
    tracker = SignalTracker()
    track(tracker, [1.0, 0.9])
    before = tracker.state
    peeked = tracker.peek(measured(2, 0.8, 60.0))
    assert tracker.state == before
    assert peeked == tracker.observe(measured(2, 0.8, 60.0))


@settings(max_examples=30, deadline=None)
@given(series, st.integers(0, 24))
def test_a_loaded_state_goes_on_as_the_original(past, cut: int) -> None:
    losses, accuracies = (list(values) for values in past)
    whole = track(SignalTracker(), losses, accuracies)
    first, second = SignalTracker(), SignalTracker()
    track(first, losses[:cut], accuracies[:cut])
    second.load(first.state)
    rest = [
        second.observe(measured(step, losses[step], accuracies[step]))
        for step in range(min(cut, len(losses)), len(losses))
    ]
    assert rest == whole[cut:]


def test_stable_accuracy_is_the_lowest_of_the_last_ones() -> None:
    tracker = SignalTracker()
    assert tracker.stable_accuracy_pct(3) is None
    track(tracker, [1.0] * 4, [10.0, 50.0, 40.0, 60.0])
    assert tracker.stable_accuracy_pct(3) == 40.0
