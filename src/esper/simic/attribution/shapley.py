"""Shapley values: exact from all coalitions, or estimated from sampled permutations."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from random import Random
from typing import TypeAlias

from esper.leyline.attribution import ShapleyEstimate

__all__ = [
    "CoalitionValue",
    "antithetic_permutations",
    "exact_shapley",
    "sampled_shapley",
]

CoalitionValue: TypeAlias = Callable[[frozenset[str]], float]
"""The value of a coalition of players."""


def exact_shapley(players: Sequence[str], value: CoalitionValue) -> dict[str, float]:
    """Return each player's mean marginal value over all permutations."""
    num_players = len(players)
    # The share of permutations in which a player joins right after a given set of others: |S|! (n -
    # 1 - |S|)! / n!.
    weights = [
        math.factorial(size) * math.factorial(num_players - 1 - size) / math.factorial(num_players)
        for size in range(num_players)
    ]
    return {
        player: sum(
            weights[len(others)] * (value(others | {player}) - value(others))
            for others in _subsets([other for other in players if other != player])
        )
        for player in players
    }


def antithetic_permutations(
    players: Sequence[str], num_pairs: int, rng: Random
) -> tuple[tuple[str, ...], ...]:
    """Return random permutations, each followed by its reverse, which lowers the variance."""
    orders: list[tuple[str, ...]] = []
    for _ in range(num_pairs):
        order = tuple(rng.sample(players, len(players)))
        orders += [order, order[::-1]]
    return tuple(orders)


def sampled_shapley(
    permutations: Sequence[tuple[str, ...]], value: CoalitionValue
) -> tuple[ShapleyEstimate, ...]:
    """Estimate Shapley values from permutations; their sum is exact (efficiency)."""
    marginals: dict[str, list[float]] = {player: [] for player in sorted(permutations[0])}
    for order in permutations:
        for index, player in enumerate(order):
            joined, before = frozenset(order[: index + 1]), frozenset(order[:index])
            # Marginals of one permutation telescope to the value of all players, hence the exact
            # sum.
            marginals[player].append(value(joined) - value(before))
    return tuple(_estimate(player, samples) for player, samples in marginals.items())


def _estimate(player: str, samples: list[float]) -> ShapleyEstimate:
    return ShapleyEstimate(
        player=player,
        mean=statistics.fmean(samples),
        std=statistics.stdev(samples) if len(samples) > 1 else 0.0,
        num_samples=len(samples),
    )


def _subsets(players: Sequence[str]) -> Iterable[frozenset[str]]:
    for size in range(len(players) + 1):
        yield from (frozenset(chosen) for chosen in combinations(players, size))
