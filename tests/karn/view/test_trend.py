"""The test for a trend."""

import math
from itertools import permutations
from random import Random

import pytest

from esper.karn.view.thresholds import LIMITS
from esper.karn.view.trend import LEVEL, find_trend


@pytest.mark.parametrize("num_values", [LIMITS.rounds_to_judge, 12, LIMITS.trend_rounds])
def test_noise_has_a_trend_no_more_often_than_the_level_says(num_values: int) -> None:
    random = Random(7)
    draws = 4000
    num_claims = sum(
        find_trend([random.gauss(0, 1) for _ in range(num_values)]).word != "flat"
        for _ in range(draws)
    )
    # Three standard deviations of a binomial count above its mean.
    assert num_claims <= draws * LEVEL + 3 * math.sqrt(draws * LEVEL)


def test_p_value_is_close_to_that_of_all_orders() -> None:
    scores = [
        sum((b > a) - (b < a) for i, a in enumerate(order) for b in order[i + 1 :])
        for order in permutations(range(7))
    ]
    for order in ([0, 1, 2, 3, 4, 5, 6], [1, 0, 2, 4, 3, 5, 6], [3, 1, 0, 2, 6, 5, 4]):
        score = sum((b > a) - (b < a) for i, a in enumerate(order) for b in order[i + 1 :])
        exact = sum(abs(other) >= abs(score) for other in scores) / len(scores)
        assert find_trend(order).p_value == pytest.approx(exact, abs=0.03)


def test_clear_trend_is_found_and_named_by_its_direction() -> None:
    random = Random(3)
    rising = [index + random.gauss(0, 1) for index in range(10)]
    trend = find_trend(rising)
    assert trend.word == "rises"
    assert trend.early < trend.late
    assert find_trend([-value for value in rising]).word == "falls"


def test_constant_values_have_no_trend() -> None:
    assert find_trend([1.0] * 20).word == "flat"
    assert find_trend([1.0] * 20).p_value == 1.0
