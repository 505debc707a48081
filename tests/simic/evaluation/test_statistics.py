"""Statistics against closed forms and brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.simic.evaluation.statistics import (
    Scores,
    Statistic,
    bootstrap,
    interquartile_mean,
    mean_difference,
    pareto_front,
    probability_of_improvement,
)

SCORES = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=12)


def mean(draws: Scores) -> Scores:
    return np.asarray(draws.mean(axis=1))


def of_all(statistic: Statistic, scores: object) -> float:
    return float(statistic(np.array(scores, dtype=np.float64)[None])[0])


@settings(max_examples=50, deadline=None)
@given(SCORES)
def test_interquartile_mean_is_the_mean_of_the_middle_half_of_quadrupled_runs(
    scores: list[float],
) -> None:
    # With every run four times, the quarters fall between runs and the middle is a plain mean.
    quadrupled = sorted(scores * 4)
    middle = quadrupled[len(scores) : 3 * len(scores)]

    assert of_all(interquartile_mean, scores) == pytest.approx(np.mean(middle))


def test_interquartile_mean_ignores_an_outlier_that_the_mean_does_not() -> None:
    assert of_all(interquartile_mean, [1.0, 1.0, 1.0, 1000.0]) == pytest.approx(1.0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_probability_of_improvement_counts_every_pair_of_runs(pairs: list[tuple[int, int]]) -> None:
    firsts, seconds = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    wins = [(a > b) + 0.5 * (a == b) for a, b in product(firsts, seconds)]

    counted = of_all(probability_of_improvement, pairs)

    assert counted == pytest.approx(sum(wins) / len(wins))


def test_bootstrap_interval_of_a_mean_is_the_normal_one_for_many_runs() -> None:
    scores = np.random.default_rng(0).normal(3.0, 2.0, size=400)

    estimate = bootstrap([scores], mean, seed=1)

    half = 1.96 * scores.std() / 20
    assert estimate.value == pytest.approx(scores.mean())
    assert estimate.low == pytest.approx(scores.mean() - half, abs=0.1 * half)
    assert estimate.high == pytest.approx(scores.mean() + half, abs=0.1 * half)


def test_bootstrap_is_the_exact_distribution_of_few_runs() -> None:
    scores = np.array([0.0, 1.0, 5.0])
    every = [np.mean(draw) for draw in product(scores, repeat=3)]

    estimate = bootstrap([scores], mean, seed=1)

    assert estimate.low == pytest.approx(np.percentile(every, 2.5, method="inverted_cdf"))
    assert estimate.high == pytest.approx(np.percentile(every, 97.5, method="inverted_cdf"))


def test_bootstrap_draws_within_strata() -> None:
    # Runs of a stratum agree, strata do not: only a draw across strata would spread.
    estimate = bootstrap([np.zeros(3), np.full(3, 10.0)], mean, seed=1)

    assert (estimate.low, estimate.value, estimate.high) == (5.0, 5.0, 5.0)


def test_bootstrap_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    scores = np.random.default_rng(0).normal(size=9)

    once = bootstrap([scores], mean, seed=1, num_draws=50)

    assert bootstrap([scores], mean, seed=1, num_draws=50) == once
    assert bootstrap([scores], mean, seed=2, num_draws=50) != once


def test_pareto_front_keeps_what_nothing_else_beats() -> None:
    accuracies = [30.0, 60.0, 50.0, 70.0, 70.0]
    num_params = [0.0, 100.0, 200.0, 400.0, 500.0]

    assert pareto_front(accuracies, num_params) == (True, True, False, True, False)


def test_equal_points_stand_on_the_front_together() -> None:
    assert pareto_front([1.0, 1.0], [2.0, 2.0]) == (True, True)


def test_mean_difference_is_between_runs_of_the_same_seed() -> None:
    assert of_all(mean_difference, [[1.0, 0.0], [10.0, 7.0]]) == 2.0
