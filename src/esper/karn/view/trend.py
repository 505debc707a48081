"""Does a series rise or fall: the Mann-Kendall test, which assumes no distribution."""

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import Final, NamedTuple

__all__ = ["Trend", "find_trend"]

LEVEL: Final = 0.01
"""Two-sided; low, because a verdict is looked at after every round."""


class Trend(NamedTuple):
    """The result of a test for a trend."""

    word: str
    """`rises`, `falls` or `flat`."""
    p_value: float
    early: float
    """Mean of the first half."""
    late: float
    """Mean of the second half."""


def find_trend(values: Sequence[float]) -> Trend:
    """Test at least two values for a monotonic trend."""
    signs = ((after > before) - (after < before) for before, after in combinations(values, 2))
    score = sum(signs)
    num_values, half = len(values), len(values) // 2
    variance = num_values * (num_values - 1) * (2 * num_values + 5) / 18
    # One is subtracted because the score is discrete; ties make the test more conservative.
    deviation = max(abs(score) - 1, 0) / math.sqrt(variance)
    p_value = math.erfc(deviation / math.sqrt(2))
    word = "flat" if p_value > LEVEL else "rises" if score > 0 else "falls"
    return Trend(word, p_value, fmean(values[:half]), fmean(values[-half:]))
