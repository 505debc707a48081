"""Statistics against closed forms and brute force."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.simic.evaluation.statistics import (
    ArmScores,
    Scores,
    Statistic,
    bootstrap,
    interquartile_mean,
    mean_difference,
    pareto_front,
    probability_of_improvement,
    t_quantile,
)

SCORES = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=12)


def mean(arms: Sequence[Scores]) -> Scores:
    return np.asarray(arms[0].mean(axis=1))


def of_all(statistic: Statistic, *arms: object) -> float:
    return float(statistic([np.array(arm, dtype=np.float64)[None] for arm in arms])[0])


def alone(scores: object) -> list[ArmScores]:
    """Return one arm without policies."""
    return [ArmScores(np.array(scores, dtype=np.float64)[None])]


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

    counted = of_all(probability_of_improvement, firsts, seconds)

    assert counted == pytest.approx(sum(wins) / len(wins))


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # From printed tables of Student's t at 97.5 %.
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (19, 2.093), (60, 2.000), (100, 1.984)],
)
def test_quantiles_of_t_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=6e-4)


def test_interval_of_a_mean_over_seeds_is_students() -> None:
    scores = np.random.default_rng(0).normal(3.0, 2.0, size=20)

    estimate = bootstrap(alone(scores), mean, seed=1, num_draws=20_000)

    half = 2.093 * scores.std(ddof=1) / np.sqrt(20)
    assert estimate.value == pytest.approx(scores.mean())
    assert estimate.high - estimate.value == pytest.approx(half, rel=0.02)
    assert estimate.value - estimate.low == pytest.approx(half, rel=0.02)


def test_variance_of_crossed_policies_and_seeds_is_that_of_the_analysis_of_variance() -> None:
    rng = np.random.default_rng(3)
    num_policies, num_seeds = 5, 20
    table = rng.normal(0, 2, (5, 1)) + rng.normal(0, 1, (1, 20)) + rng.normal(0, 1, (5, 20))

    estimate = bootstrap([ArmScores(table, "policies")], mean, seed=1, num_draws=20_000)

    rows, columns = table.mean(axis=1, keepdims=True), table.mean(axis=0, keepdims=True)
    rest = table - rows - columns + table.mean()
    by_policy = rows.var() / num_policies
    by_seed = columns.var() / num_seeds
    interaction = rest.var() / table.size
    half = np.sqrt(2.776**2 * 5 / 4 * (by_policy - interaction) + 2.093**2 * 20 / 19 * by_seed)
    assert estimate.high - estimate.value == pytest.approx(half, rel=0.03)


def test_seeds_are_drawn_once_for_all_arms() -> None:
    # What a seed does to both arms cancels only if both have the same seeds in every draw.
    shared = np.random.default_rng(0).normal(0, 100, size=20)

    estimate = bootstrap([*alone(shared + 1.0), *alone(shared)], mean_difference, seed=1)

    assert (estimate.low, estimate.high) == pytest.approx((1.0, 1.0))


def test_policies_are_drawn_once_for_arms_that_share_them() -> None:
    table = np.random.default_rng(0).normal(0, 100, size=(4, 1)) + np.zeros((1, 20))
    same = [ArmScores(table + 1.0, "one"), ArmScores(table, "one")]
    others = [ArmScores(table + 1.0, "one"), ArmScores(table, "two")]

    paired = bootstrap(same, mean_difference, seed=1)
    unpaired = bootstrap(others, mean_difference, seed=1)

    assert (paired.low, paired.high) == pytest.approx((1.0, 1.0))
    assert unpaired.high - unpaired.low > 50.0


def test_a_single_policy_is_not_resampled() -> None:
    scores = np.random.default_rng(0).normal(size=(1, 20))

    assert bootstrap([ArmScores(scores, "p")], mean, seed=1) == bootstrap(
        [ArmScores(scores)], mean, seed=1
    )


COVERAGE_RUNS = 500


def simulated(rng: np.random.Generator, num_policies: int, spread: float) -> list[ArmScores]:
    """Return a policy that is better than a baseline by 1 on average; policies differ by spread."""
    luck = rng.normal(0, 1, size=20)
    policies = rng.normal(0, spread, size=(num_policies, 1))
    learned = 1.0 + policies + 0.3 * luck + rng.normal(0, 0.5, size=(num_policies, 20))
    return [ArmScores(learned, "policies"), *alone(luck + rng.normal(0, 0.7, size=20))]


def coverage(simulate: Callable[[np.random.Generator], list[ArmScores]]) -> float:
    """Return how often the interval of a difference that is 1 contains it."""
    found = [
        bootstrap(simulate(np.random.default_rng(run)), mean_difference, seed=run, num_draws=300)
        for run in range(COVERAGE_RUNS)
    ]
    return sum(estimate.low <= 1.0 <= estimate.high for estimate in found) / COVERAGE_RUNS


@pytest.mark.parametrize("num_policies", [3, 5])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_intervals_contain_the_truth_as_often_as_they_say(num_policies: int, spread: float) -> None:
    share = coverage(partial(simulated, num_policies=num_policies, spread=spread))

    assert 0.93 <= share <= 0.97


def two_learned(rng: np.random.Generator, num_policies: int, spread: float) -> list[ArmScores]:
    """Return two arms with policies of their own, the first better by 1 on average."""
    luck = rng.normal(0, 1, size=20)
    return [
        ArmScores(
            gain
            + rng.normal(0, spread, size=(num_policies, 1))
            + luck
            + rng.normal(0, 0.5, size=(num_policies, 20)),
            name,
        )
        for gain, name in ((1.0, "first"), (0.0, "second"))
    ]


@pytest.mark.parametrize("num_policies", [3, 5])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_intervals_between_learned_arms_do_so_too(num_policies: int, spread: float) -> None:
    share = coverage(partial(two_learned, num_policies=num_policies, spread=spread))

    assert 0.93 <= share <= 0.97


def test_policies_of_two_arms_together_tell_how_much_policies_differ() -> None:
    """The formula of Welch's test, where seeds do not matter."""
    tables = [np.array([[v] * 20 for v in row]) for row in ([1.0, 4.0, 9.0], [0.0, 2.0, 1.0, 7.0])]
    arms = [ArmScores(table, name) for table, name in zip(tables, "ab", strict=True)]

    estimate = bootstrap(arms, mean_difference, seed=1, num_draws=20_000)

    parts = [table[:, 0].var(ddof=1) / len(table) for table in tables]
    degrees = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 3)
    half = t_quantile(degrees) * np.sqrt(sum(parts))
    assert estimate.high - estimate.value == pytest.approx(half, rel=0.02)
    assert t_quantile(2) > 1.3 * t_quantile(degrees)


def test_bootstrap_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    scores = np.random.default_rng(0).normal(size=9)

    once = bootstrap(alone(scores), mean, seed=1, num_draws=50)

    assert bootstrap(alone(scores), mean, seed=1, num_draws=50) == once
    assert bootstrap(alone(scores), mean, seed=2, num_draws=50) != once


def test_interval_is_above_zero_only_if_the_runs_agree_that_it_is() -> None:
    agreed = bootstrap(alone([1.0, 1.2, 1.1]), mean, seed=1)
    divided = bootstrap(alone([-1.0, 2.0, 0.5]), mean, seed=1)

    assert 0.0 < agreed.low < agreed.value < agreed.high
    assert divided.low < 0.0 < divided.value < divided.high


def test_pareto_front_keeps_what_nothing_else_beats() -> None:
    accuracies = [30.0, 60.0, 50.0, 70.0, 70.0]
    num_params = [0.0, 100.0, 200.0, 400.0, 500.0]

    assert pareto_front(accuracies, num_params) == (True, True, False, True, False)


def test_equal_points_stand_on_the_front_together() -> None:
    assert pareto_front([1.0, 1.0], [2.0, 2.0]) == (True, True)


def test_mean_difference_is_that_of_the_means() -> None:
    assert of_all(mean_difference, [1.0, 10.0], [0.0, 7.0]) == 2.0
