"""The anomaly detector: what fires, when it lets go, and what it remembers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simic.telemetry.updates import head, lstm, update

from esper.leyline.actions import HEAD_SPECS, HEADS, Head
from esper.leyline.payloads import (
    EntropyCollapseDetected,
    GradientPathologyDetected,
    KlSpikeDetected,
    LstmAnomalyDetected,
    NumericalInstabilityDetected,
    RatioCollapseDetected,
    RatioExplosionDetected,
    ValueCollapseDetected,
)
from esper.simic.telemetry.anomaly import (
    RULES,
    AnomalyState,
    detect_anomalies,
    note_idle_update,
    note_skipped_update,
)


def alarms_of(**changes) -> tuple:
    return detect_anomalies(AnomalyState(), update(**changes))[1]


def test_a_healthy_update_raises_no_alarm() -> None:
    assert alarms_of() == ()


@pytest.mark.parametrize(
    ("changes", "alarm"),
    [
        ({"ratio_max": 5.0}, None),
        ({"ratio_max": 5.001}, RatioExplosionDetected),
        ({"ratio_max": math.inf}, RatioExplosionDetected),
        ({"ratio_min": 0.1}, None),
        ({"ratio_min": 0.099}, RatioCollapseDetected),
        ({"value_loss": 5.0}, None),
        ({"value_loss": 5.001}, ValueCollapseDetected),
        ({"bellman_error": 5.001}, ValueCollapseDetected),
        ({"bellman_error": 5.001, "usable_steps": 0}, None),
        ({"explained_variance": -9.0, "has_low_return_variance": True}, None),
        ({"kl_divergence": 0.5}, None),
        ({"kl_divergence": 0.5001}, KlSpikeDetected),
        ({"nan_gradient_count": 1}, NumericalInstabilityDetected),
        ({"inf_gradient_count": 1}, NumericalInstabilityDetected),
        ({"num_finiteness_skips": 1}, NumericalInstabilityDetected),
        ({"lstm_rollout": None}, None),
        ({"lstm_rollout": lstm(h_env_rms_max=10.0)}, None),
        ({"lstm_rollout": lstm(h_env_rms_max=10.1)}, LstmAnomalyDetected),
        ({"lstm_rollout": lstm(c=1e-6)}, None),
        ({"lstm_rollout": lstm(c=9e-7)}, LstmAnomalyDetected),
        ({"ratio_max": None, "ratio_min": None, "kl_divergence": None}, None),
    ],
)
def test_each_check_fires_just_beyond_its_threshold(changes, alarm) -> None:
    assert [type(item) for item in alarms_of(**changes)] == ([] if alarm is None else [alarm])


def test_the_head_with_the_largest_ratio_is_named() -> None:
    heads = {item.value: head() for item in HEADS} | {"tempo": head(ratio_max=7.0)}

    (alarm,) = alarms_of(ratio_max=7.0, heads=heads)

    assert (alarm.ratio, alarm.worst_head) == (7.0, "tempo")


def test_figures_that_are_not_finite_are_named_and_do_not_halt() -> None:
    _, (alarm,) = detect_anomalies(
        AnomalyState(), update(nan_gradient_count=3), unstable=("value_loss",)
    )

    assert alarm.where == ("value_loss", "nan_gradients")
    assert not alarm.is_halting


@pytest.mark.parametrize("state", ["h", "c"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_lstm_state_that_is_not_finite_is_named(state: str, value: float) -> None:
    (alarm,) = alarms_of(lstm_rollout=lstm(**{state: value}))

    assert (alarm.kind, alarm.state) == ("nonfinite", state)


def run(entropies: list[float | None], which: Head = Head.OP) -> list[int]:
    """Return the length of each collapse alarm's streak, 0 without one, update by update."""
    state, reported = AnomalyState(), []
    for entropy in entropies:
        heads = {item.value: head() for item in HEADS} | {which.value: head(entropy)}
        state, alarms = detect_anomalies(state, update(heads=heads))
        found = [alarm for alarm in alarms if isinstance(alarm, EntropyCollapseDetected)]
        reported.append(found[0].consecutive_updates if found else 0)
    return reported


@pytest.mark.parametrize("which", HEADS)
def test_a_collapse_takes_three_updates_and_ends_above_the_release(which: Head) -> None:
    threshold = HEAD_SPECS[which].collapse_threshold
    low, between, high = 0.9 * threshold, 1.4 * threshold, 1.6 * threshold

    assert run([low, low, low, low], which) == [0, 0, 3, 4]
    assert run([low, low, low, between, between], which) == [0, 0, 3, 3, 3]
    assert run([low, low, low, high, low], which) == [0, 0, 3, 0, 0]
    assert run([low, low, high, low, low], which) == [0, 0, 0, 0, 0]
    assert run([threshold, threshold, threshold], which) == [0, 0, 0]


def test_an_update_that_did_not_measure_a_head_says_nothing_about_it() -> None:
    assert run([0.0, 0.0, 0.0, None]) == [0, 0, 3, 0]
    assert run([0.0, 0.0, None, 0.0]) == [0, 0, 0, 3]


def test_drift_is_reported_against_the_running_mean_of_the_updates_before() -> None:
    state, _ = detect_anomalies(AnomalyState(), update(gradient_norm=1.0))
    state, calm = detect_anomalies(state, update(gradient_norm=1.5))
    _, (alarm,) = detect_anomalies(state, update(gradient_norm=0.5))

    mean = 0.99 * 1.0 + 0.01 * 1.5
    assert calm == ()
    assert isinstance(alarm, GradientPathologyDetected)
    assert (alarm.quantity, alarm.value) == ("norm", 0.5)
    assert alarm.running_mean == pytest.approx(mean)
    assert alarm.drift_fraction == pytest.approx((mean - 0.5) / mean)


def test_health_drifts_when_norms_leave_the_healthy_range() -> None:
    state, _ = detect_anomalies(AnomalyState(), update(gradient_norm=1.0))
    _, alarms = detect_anomalies(state, update(gradient_norm=101.0))

    assert [alarm.quantity for alarm in alarms] == ["norm", "health"]


@given(st.lists(st.floats(0.01, 50.0) | st.sampled_from([None, math.nan]), max_size=20))
def test_the_running_mean_is_the_exponential_one_of_what_was_measured(norms) -> None:
    state, mean = AnomalyState(), None
    for norm in norms:
        state, _ = detect_anomalies(state, update(gradient_norm=norm))
        if norm is not None and not math.isnan(norm):
            mean = norm if mean is None else 0.99 * mean + 0.01 * norm
        assert state.gradient_norm_mean == (None if mean is None else pytest.approx(mean))


def test_two_skipped_updates_degrade_and_the_third_in_a_row_halts() -> None:
    state, halting = AnomalyState(), []
    for _ in range(RULES.skips_to_halt):
        state, alarm = note_skipped_update(state, ("policy_loss",))
        halting.append(alarm.is_halting)

    assert halting == [False, False, True]
    assert alarm.consecutive_skips == 3
    assert alarm.where == ("policy_loss",)


def test_an_update_between_two_skips_starts_the_count_anew() -> None:
    once, _ = note_skipped_update(AnomalyState(low_entropy_streaks={"op": 2}), ())
    after_update, _ = detect_anomalies(once, update())
    after_nothing = note_idle_update(once)

    assert after_update.consecutive_skips == after_nothing.consecutive_skips == 0
    assert once.low_entropy_streaks == after_nothing.low_entropy_streaks == {"op": 2}
