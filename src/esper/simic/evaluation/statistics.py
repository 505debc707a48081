"""Statistics of few runs: interquartile mean, hierarchical bootstrap, comparisons, Pareto front.

An arm's scores are a table with a row per trained policy and a column per seed. All arms share the
seeds, and an arm that copies another one's networks shares its policies. Policies and seeds are
samples of all that could have been trained and drawn, so both are resampled: a draw picks seeds
once for all arms, and policies once for all arms that share them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from esper.leyline.comparison import Estimate

__all__ = [
    "ArmScores",
    "Scores",
    "Statistic",
    "bootstrap",
    "interquartile_mean",
    "mean_difference",
    "pareto_front",
    "probability_of_improvement",
    "share_closed",
    "t_quantile",
]

DEFAULT_NUM_DRAWS: Final = 2000
CONFIDENCE: Final = 0.95
NUM_ANGLES: Final = 20_001

Scores: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.intp]
Statistic: TypeAlias = Callable[[Sequence[Scores]], Scores]
"""Maps draws of the runs of each arm, [draws, runs], to one value per draw."""


@dataclass(frozen=True, slots=True)
class ArmScores:
    """The runs of one arm."""

    scores: Scores  # [policies, seeds]
    policies: str | None = None
    """Name of the set of policies; arms of the same name share them. None for an arm without."""


def interquartile_mean(arms: Sequence[Scores]) -> Scores:
    """Return the mean of the middle half; runs on its edges are weighted fractionally."""
    (draws,) = arms
    num_runs = draws.shape[1]
    edges = np.arange(num_runs + 1, dtype=np.float64) / num_runs
    inside = np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25)
    weights = np.maximum(inside, 0.0)
    figures: Scores = np.sort(draws, axis=1) @ (weights / weights.sum())
    return figures


def mean_difference(arms: Sequence[Scores]) -> Scores:
    """Return the mean of the first arm minus that of the second."""
    first, second = arms
    figures: Scores = first.mean(axis=1) - second.mean(axis=1)
    return figures


def share_closed(arms: Sequence[Scores]) -> Scores:
    """Return the gain of the first arm over the second, as a share of the third's."""
    first, second, third = (arm.mean(axis=1) for arm in arms)
    figures: Scores = (first - second) / (third - second)
    return figures


def probability_of_improvement(arms: Sequence[Scores]) -> Scores:
    """Return the probability that a run of arm 1 beats one of arm 2; ties count half."""
    first, second = arms[0][:, :, None], arms[1][:, None, :]
    figures: Scores = ((first > second) + 0.5 * (first == second)).mean(axis=(1, 2))
    return figures


def bootstrap(
    arms: Sequence[ArmScores],
    statistic: Statistic,
    *,
    seed: int,
    num_draws: int = DEFAULT_NUM_DRAWS,
) -> Estimate:
    """Estimate a statistic with its 95 % confidence interval over policies and seeds.

    The variance is that of resampling the seeds, plus that of resampling each set of policies,
    without the interaction of both, which the seeds' part contains already. Percentiles of so few
    policies would be far too narrow; instead, the part of the seeds and that of all policies are
    each widened by the quantile of Student's t for their degrees of freedom.

    Args:
        arms: the runs of each arm that the statistic is computed from.
        statistic: computed over all runs of each arm together.
        seed: seed of the resampling: the same seed gives the same interval.
        num_draws: number of resamples; more reduce the noise of the interval.
    """
    (value,) = statistic([arm.scores.reshape(1, -1) for arm in arms])
    half = _half_width(arms, statistic, np.random.default_rng(seed), num_draws)
    return Estimate(value=float(value), low=float(value) - half, high=float(value) + half)


def _half_width(
    arms: Sequence[ArmScores], statistic: Statistic, rng: np.random.Generator, num_draws: int
) -> float:
    num_seeds = arms[0].scores.shape[1]
    seeds = rng.integers(num_seeds, size=(num_draws, num_seeds))
    sizes = {
        arm.policies: len(arm.scores)
        for arm in arms
        if arm.policies is not None and len(arm.scores) > 1
    }
    policies = {name: rng.integers(size, size=(num_draws, size)) for name, size in sizes.items()}
    of_seeds = _spread(arms, statistic, seeds, {})
    squared = _widened([of_seeds], [num_seeds])
    if sizes:
        spreads = {name: _spread(arms, statistic, None, {name: policies[name]}) for name in sizes}
        of_policies = sum(spreads.values())
        interaction = _spread(arms, statistic, seeds, policies) - of_seeds - of_policies
        own = max(1.0 - max(interaction, 0.0) / of_policies, 0.0) if of_policies else 0.0
        squared += own * _widened(list(spreads.values()), list(sizes.values()))
    return float(np.sqrt(squared))


def _widened(resampled: Sequence[float], sizes: Sequence[int]) -> float:
    """Return a squared half width from resampled variances of samples of these sizes.

    The degrees of freedom of several samples together are those of Welch and Satterthwaite: three
    policies of each of two arms say more about how much policies differ than three of one.
    """
    # A resampled variance is biased.
    parts = [part * size / (size - 1) for part, size in zip(resampled, sizes, strict=True)]
    if not any(parts):
        return 0.0
    doubts = sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    degrees = round(sum(parts) ** 2 / doubts, 1)
    return t_quantile(degrees) ** 2 * sum(parts)


def _spread(
    arms: Sequence[ArmScores],
    statistic: Statistic,
    seeds: Indices | None,
    policies: dict[str, Indices],
) -> float:
    """Return the variance of a statistic over draws of seeds, of policies, or of both."""
    drawn = [_drawn(arm, seeds, policies) for arm in arms]
    num_draws = max(map(len, drawn))
    same = [np.broadcast_to(part, (num_draws, part.shape[1])) for part in drawn]
    return float(np.var(statistic(same)))


def _drawn(arm: ArmScores, seeds: Indices | None, policies: dict[str, Indices]) -> Scores:
    """Return draws of an arm's runs, [draws, runs]; one draw of all runs if nothing is drawn."""
    table = arm.scores[None]
    rows = policies.get(arm.policies or "")
    if rows is not None:
        table = table[0][rows]
    if seeds is not None:
        table = np.take_along_axis(
            np.broadcast_to(table, (len(seeds), *table.shape[1:])), seeds[:, None, :], axis=2
        )
    figures: Scores = table.reshape(len(table), -1)
    return figures


@cache
def t_quantile(degrees: float) -> float:
    """Return the quantile of Student's t distribution that bounds a confidence interval.

    With x = sqrt(degrees) * tan(angle), the density of the angle is proportional to
    cos(angle) ** (degrees - 1), which is integrated numerically.
    """
    angles = np.linspace(0.0, np.pi / 2.0, NUM_ANGLES)
    density = np.cos(angles) ** (degrees - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2.0)])
    angle = np.interp(CONFIDENCE / 2.0, 0.5 * below / below[-1], angles)
    return float(np.sqrt(degrees) * np.tan(angle))


def pareto_front(gains: Sequence[float], costs: Sequence[float]) -> tuple[bool, ...]:
    """Return which points are Pareto-optimal: not dominated in gain and cost by another point."""
    points = list(zip(gains, costs, strict=True))
    return tuple(
        not any(
            other != point and other[0] >= point[0] and other[1] <= point[1] for other in points
        )
        for point in points
    )
