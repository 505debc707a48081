"""Statistics of few runs: interquartile mean, stratified bootstrap, comparisons, Pareto front.

Scores come in strata (for example one per trained policy), each a row of independent runs. The
bootstrap resamples runs within each stratum, so that all strata have equal weight in every draw.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from esper.leyline.comparison import Estimate

__all__ = [
    "Scores",
    "Statistic",
    "bootstrap",
    "interquartile_mean",
    "mean_difference",
    "pareto_front",
    "probability_of_improvement",
]

DEFAULT_NUM_DRAWS: Final = 2000
CONFIDENCE_PCT: Final = 95.0

Scores: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Scores], Scores]
"""Maps draws to one value each; a draw has the runs along the second axis."""


def interquartile_mean(draws: Scores) -> Scores:
    """Return the mean of the middle half; runs on its edges are weighted fractionally."""
    num_runs = draws.shape[1]
    edges = np.arange(num_runs + 1, dtype=np.float64) / num_runs
    inside = np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25)
    weights = np.maximum(inside, 0.0)
    figures: Scores = np.sort(draws, axis=1) @ (weights / weights.sum())
    return figures


def mean_difference(draws: Scores) -> Scores:
    """Return the mean of the first column minus the second, run by run."""
    figures: Scores = (draws[:, :, 0] - draws[:, :, 1]).mean(axis=1)
    return figures


def probability_of_improvement(draws: Scores) -> Scores:
    """Return the probability that a run of column 1 beats one of column 2; ties count half."""
    first, second = draws[:, :, None, 0], draws[:, None, :, 1]
    figures: Scores = ((first > second) + 0.5 * (first == second)).mean(axis=(1, 2))
    return figures


def bootstrap(
    strata: Sequence[Scores],
    statistic: Statistic,
    *,
    seed: int,
    num_draws: int = DEFAULT_NUM_DRAWS,
) -> Estimate:
    """Estimate a statistic of the pooled runs, with its percentile interval.

    Args:
        strata: the runs of each stratum along the first axis.
        statistic: computed over all runs together.
        seed: seed of the resampling: the same seed gives the same interval.
        num_draws: number of resamples; more reduce the noise of the interval.
    """
    generator = np.random.default_rng(seed)
    drawn = [runs[generator.integers(len(runs), size=(num_draws, len(runs)))] for runs in strata]
    tail_pct = (100.0 - CONFIDENCE_PCT) / 2
    low, high = np.percentile(
        statistic(np.concatenate(drawn, axis=1)), [tail_pct, 100.0 - tail_pct]
    )
    (value,) = statistic(np.concatenate(list(strata))[None])
    return Estimate(value=float(value), low=float(low), high=float(high))


def pareto_front(gains: Sequence[float], costs: Sequence[float]) -> tuple[bool, ...]:
    """Return which points are Pareto-optimal: not dominated in gain and cost by another point."""
    points = list(zip(gains, costs, strict=True))
    return tuple(
        not any(
            other != point and other[0] >= point[0] and other[1] <= point[1] for other in points
        )
        for point in points
    )
