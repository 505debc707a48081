"""One table, one way to read it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.karn.view.thresholds import THRESHOLDS, Grade, Threshold, grade, worst

numbers = st.floats(allow_nan=False)


@pytest.mark.parametrize("threshold", THRESHOLDS.values(), ids=THRESHOLDS)
def test_act_lies_beyond_watch(threshold: Threshold) -> None:
    assert (threshold.act < threshold.watch) == threshold.is_low_bad
    assert threshold.act != threshold.watch


@given(st.sampled_from(sorted(THRESHOLDS)), numbers, numbers)
def test_grades_never_get_better_towards_the_bad_side(name: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    good, bad = (high, low) if THRESHOLDS[name].is_low_bad else (low, high)
    assert grade(name, good).rank <= grade(name, bad).rank


def test_never_measured_has_no_grade() -> None:
    assert grade("kl_divergence", None) is Grade.UNKNOWN


def test_worst_of_nothing_is_unknown() -> None:
    assert worst() is Grade.UNKNOWN
    assert worst(Grade.OK, Grade.ACT, Grade.WATCH) is Grade.ACT
