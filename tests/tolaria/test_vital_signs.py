"""When a host counts as lost."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.config import GovernorConfig
from esper.leyline.messages import Panic, PanicReason
from esper.tolaria.vital_signs import VitalSigns, after_rollback, check_vital_signs

CONFIG = GovernorConfig()
GUESS = math.log(10)


def check(signs: VitalSigns, loss: float, guess: float = GUESS) -> tuple[VitalSigns, Panic | None]:
    return check_vital_signs(signs, loss, random_guess_loss=guess, config=CONFIG)


def healthy(*losses: float) -> VitalSigns:
    return VitalSigns(losses=losses or (1.0,) * 10)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("signs", [VitalSigns(), healthy()])
def test_a_loss_that_is_not_finite_panics_at_once_and_leaves_no_trace(
    loss: float, signs: VitalSigns
) -> None:
    after, panic = check(signs, loss)
    assert panic is not None
    assert panic.reason is PanicReason.NAN
    assert after == signs


@pytest.mark.parametrize("num_classes", [2, 10, 256])
def test_a_host_that_guesses_again_panics_at_once_for_any_number_of_classes(
    num_classes: int,
) -> None:
    guess = math.log(num_classes)
    knew = healthy(*[0.5 * guess] * 10)
    _, panic = check(knew, guess * 1.06, guess)
    assert panic is not None
    assert panic.reason is PanicReason.LOBOTOMY
    assert check(knew, guess * 1.07, guess)[1] is None
    assert check(healthy(*[0.7 * guess] * 10), guess, guess)[1] is None
    assert check(healthy(*[0.5 * guess] * 9), guess, guess)[1] is None


def test_an_explosion_panics_after_three_steps_in_a_row() -> None:
    signs = healthy()
    verdicts = []
    for loss in (50.0, 60.0, 70.0):
        signs, panic = check(signs, loss)
        verdicts.append(panic)
    assert verdicts[:2] == [None, None]
    assert verdicts[2] is not None
    assert verdicts[2].reason is PanicReason.DIVERGENCE
    assert verdicts[2].loss == 70.0
    assert verdicts[2].threshold == 12.0
    assert verdicts[2].consecutive_anomalies == 3


def test_a_normal_step_between_two_explosions_starts_the_count_anew() -> None:
    signs = healthy()
    for loss in (50.0, 60.0, 1.0, 50.0, 60.0):
        signs, panic = check(signs, loss)
        assert panic is None
    assert signs.consecutive_anomalies == 2


def test_before_there_is_a_history_nothing_counts_as_an_explosion() -> None:
    signs = VitalSigns()
    for loss in [1000.0] * 9:
        signs, panic = check(signs, loss)
        assert panic is None
    assert len(signs.losses) == 9


losses = st.lists(st.floats(min_value=0, max_value=100), min_size=10, max_size=20)


@given(losses, st.floats(min_value=0, max_value=10_000))
def test_divergence_needs_all_three_tests_to_agree(history: list[float], loss: float) -> None:
    signs = VitalSigns(losses=tuple(history))
    after, panic = check(signs, loss)
    if panic is not None:
        assert panic.reason is PanicReason.LOBOTOMY
        return
    mean, deviation = statistics.fmean(history), statistics.pstdev(history)
    is_anomalous = loss > 12 and loss > mean + 6 * deviation and loss > 3 * mean
    assert after.consecutive_anomalies == int(is_anomalous)
    assert (after.losses[-1] == loss and len(after.losses) >= len(history)) or is_anomalous


@given(losses, st.lists(st.floats(min_value=0, max_value=1000), max_size=40))
def test_history_is_bounded_and_holds_only_normal_losses(
    start: list[float], later: list[float]
) -> None:
    signs = VitalSigns(losses=tuple(start))
    for loss in later:
        before = signs
        signs, _ = check(signs, loss)
        assert len(signs.losses) <= CONFIG.history_window
        if signs.consecutive_anomalies > before.consecutive_anomalies:
            assert signs.losses == before.losses


def test_a_rollback_keeps_the_history_and_clears_the_count() -> None:
    signs = VitalSigns(losses=(1.0, 2.0), consecutive_anomalies=3)
    assert after_rollback(signs) == VitalSigns(losses=(1.0, 2.0))
