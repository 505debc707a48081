"""Statistics of few runs: interquartile means, stratified bootstraps, who is better, Pareto fronts.

Scores come in strata (one per trained policy, say), each a row of independent runs. A bootstrap
draws runs anew within every stratum, so that no stratum weighs more in one draw than in another.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from esper.leyline.comparison import Estimate

__all__ = [
    "Statistic",
    "bootstrap",
    "interquartile_mean",
    "pareto_front",
    "probability_of_improvement",
]

DEFAULT_NUM_DRAWS: Final = 2000
CONFIDENCE_PCT: Final = 95.0

Statistic: TypeAlias = Callable[[NDArray[np.float64]], float]
"""Turns the pooled scores into one figure; the last axis runs over what was measured of a run."""


def interquartile_mean(scores: NDArray[np.float64]) -> float:
    """Return the mean of the middle half; a run on its edge counts with the part that is inside."""
    ordered = np.sort(scores)
    edges = np.arange(len(ordered) + 1, dtype=np.float64) / len(ordered)
    inside = np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25)
    weights = np.maximum(inside, 0.0)
    return float(ordered @ weights / weights.sum())


def probability_of_improvement(pairs: NDArray[np.float64]) -> float:
    """Return how likely a run of the first arm beats one of the second; a tie is half a win.

    Args:
        pairs: one row per seed, the first arm's score beside the second's.
    """
    first, second = pairs[:, 0, None], pairs[None, :, 1]
    wins = (first > second) + 0.5 * (first == second)
    return float(wins.mean())


def bootstrap(
    strata: Sequence[NDArray[np.float64]],
    statistic: Statistic,
    *,
    seed: int,
    num_draws: int = DEFAULT_NUM_DRAWS,
) -> Estimate:
    """Estimate a statistic of the pooled runs, with its percentile interval.

    Args:
        strata: the runs of each stratum along the first axis.
        statistic: of all runs together.
        seed: of the draws: the same seed gives the same interval.
        num_draws: more make the interval's ends steadier.
    """
    generator = np.random.default_rng(seed)
    drawn = [
        statistic(
            np.concatenate([runs[generator.integers(len(runs), size=len(runs))] for runs in strata])
        )
        for _ in range(num_draws)
    ]
    tail_pct = (100.0 - CONFIDENCE_PCT) / 2
    low, high = np.percentile(drawn, [tail_pct, 100.0 - tail_pct])
    return Estimate(value=statistic(np.concatenate(list(strata))), low=float(low), high=float(high))


def pareto_front(gains: Sequence[float], costs: Sequence[float]) -> tuple[bool, ...]:
    """Tell which points no other one beats: one that gains as much, costs as little, and is not
    the same.
    """
    points = list(zip(gains, costs, strict=True))
    return tuple(
        not any(
            other != point and other[0] >= point[0] and other[1] <= point[1] for other in points
        )
        for point in points
    )
