"""Alpha moves along its curves, lands exactly, and rests."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.kasmina.alpha_controller import curve_progress, parked, retarget, step
from esper.leyline.alpha import AlphaCurve, AlphaMode, AlphaState
from esper.leyline.errors import ContractError

LINEAR, COSINE, SIGMOID = AlphaCurve.LINEAR, AlphaCurve.COSINE, AlphaCurve.SIGMOID

REFERENCE_RAMPS = [
    (LINEAR, 12.0, [0.3333, 0.6667, 1]),
    (COSINE, 12.0, [0.25, 0.75, 1]),
    (SIGMOID, 6.0, [0.2447, 0.7553, 1]),
    (SIGMOID, 12.0, [0.1173, 0.8827, 1]),
    (SIGMOID, 24.0, [0.018, 0.982, 1]),
    (LINEAR, 12.0, [0.2, 0.4, 0.6, 0.8, 1]),
    (COSINE, 12.0, [0.0955, 0.3455, 0.6545, 0.9045, 1]),
    (SIGMOID, 6.0, [0.1043, 0.3391, 0.6609, 0.8957, 1]),
    (SIGMOID, 12.0, [0.0242, 0.2301, 0.7699, 0.9758, 1]),
    (SIGMOID, 24.0, [0.0007, 0.0832, 0.9168, 0.9993, 1]),
    (LINEAR, 12.0, [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1]),
    (COSINE, 12.0, [0.0381, 0.1464, 0.3087, 0.5, 0.6913, 0.8536, 0.9619, 1]),
    (SIGMOID, 6.0, [0.0529, 0.1491, 0.302, 0.5, 0.698, 0.8509, 0.9471, 1]),
    (SIGMOID, 12.0, [0.0086, 0.0452, 0.1808, 0.5, 0.8192, 0.9548, 0.9914, 1]),
    (SIGMOID, 24.0, [0.0001, 0.0025, 0.0474, 0.5, 0.9526, 0.9975, 0.9999, 1]),
]

alphas = st.floats(0.0, 1.0)
curves = st.sampled_from(AlphaCurve)
steepnesses = st.sampled_from([0.1, 6.0, 12.0, 24.0, 1e4])


def ramp(state: AlphaState) -> list[float]:
    """Return alpha after every step until it rests."""
    passed = []
    while state.mode is not AlphaMode.HOLD:
        state = step(state)
        passed.append(state.alpha)
    return passed


def steepest(curve: AlphaCurve, steepness: float) -> float:
    """Return the analytic maximum of the curve's derivative."""
    if curve is LINEAR:
        return 1.0
    if curve is COSINE:
        return math.pi / 2
    return max(steepness, 0.1) / 4 / math.tanh(max(steepness, 0.1) / 4)


@pytest.mark.parametrize(("curve", "steepness", "expected"), REFERENCE_RAMPS)
def test_ramp_from_zero_to_one_equals_the_reference_to_four_digits(
    curve: AlphaCurve, steepness: float, expected: list[float]
) -> None:
    start = retarget(AlphaState(), 1.0, len(expected), curve=curve, steepness=steepness)

    assert ramp(start) == pytest.approx(expected, abs=5.1e-5)


@given(alphas, alphas, st.integers(1, 20), curves, steepnesses)
def test_ramp_is_monotonic_bounded_by_its_slope_and_lands_exactly(
    alpha: float, target: float, num_steps: int, curve: AlphaCurve, steepness: float
) -> None:
    passed = ramp(retarget(parked(alpha), target, num_steps, curve=curve, steepness=steepness))

    if alpha == target:
        assert passed == []
        return
    jumps = [later - earlier for earlier, later in zip([alpha, *passed], passed, strict=False)]
    limit = abs(target - alpha) * steepest(curve, steepness) / num_steps
    assert len(passed) == num_steps
    assert passed[-1] == target
    assert all(abs(jump) <= limit + 1e-12 for jump in jumps)
    assert all(jump * (target - alpha) >= 0 for jump in jumps)


@given(curves, steepnesses)
def test_curve_starts_at_zero_and_ends_at_one(curve: AlphaCurve, steepness: float) -> None:
    assert curve_progress(curve, 0.0, steepness) == pytest.approx(0.0, abs=1e-12)
    assert curve_progress(curve, 1.0, steepness) == pytest.approx(1.0, abs=1e-12)


def test_sigmoid_of_the_smallest_steepness_is_nearly_a_line() -> None:
    assert curve_progress(SIGMOID, 0.25, 0.0) == pytest.approx(0.25, abs=1e-3)


def test_retarget_without_steps_jumps_at_once() -> None:
    state = retarget(parked(0.5), 0.7, 0)

    assert (state.alpha, state.mode, state.steps_to_target) == (0.7, AlphaMode.HOLD, 0)


def test_retarget_to_where_alpha_is_leaves_nothing_pending() -> None:
    state = retarget(parked(0.7), 0.7, 8)

    assert (state.mode, state.steps_total, state.steps_to_target) == (AlphaMode.HOLD, 0, 0)
    assert state.is_at_target


def test_retarget_keeps_curve_and_steepness_unless_changed() -> None:
    shaped = retarget(AlphaState(), 0.5, 0, curve=SIGMOID, steepness=24.0)

    kept = retarget(shaped, 1.0, 3)

    assert (kept.curve, kept.steepness) == (SIGMOID, 24.0)


def test_retarget_is_refused_while_alpha_moves() -> None:
    with pytest.raises(ContractError, match="still moving"):
        retarget(retarget(AlphaState(), 1.0, 3), 0.5, 3)


@pytest.mark.parametrize(("target", "num_steps"), [(-0.1, 1), (1.1, 1), (0.5, -1)])
def test_retarget_is_refused_out_of_range(target: float, num_steps: int) -> None:
    with pytest.raises(ContractError, match="out of range"):
        retarget(AlphaState(), target, num_steps)


def test_step_at_rest_changes_nothing() -> None:
    state = parked(0.7)

    assert step(state) is state
