"""Thresholds and limits shared by console, dashboard and report."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

__all__ = ["LIMITS", "THRESHOLDS", "Grade", "Limits", "Threshold", "grade", "worst"]


class Grade(StrEnum):
    """The grade of a number against its threshold, in ascending severity."""

    UNKNOWN = "unknown"
    """Not measured."""
    OK = "ok"
    WATCH = "watch"
    ACT = "act"

    @property
    def rank(self) -> int:
        """Return 0 for unknown up to 3 for act."""
        return _RANKS[self]


_RANKS: Final = {grade: rank for rank, grade in enumerate(Grade)}


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """The values from which a number should be watched, and from which it requires action."""

    label: str
    watch: float
    act: float
    is_low_bad: bool = False
    unit: str = ""
    meaning: str
    """What crossing the threshold means, for the operator."""


THRESHOLDS: Final[Mapping[str, Threshold]] = {
    "kl_divergence": Threshold(
        label="KL divergence",
        # Per decision. The recipes stop an update at 0.15 or 0.3; the spike limit is 0.5.
        watch=0.25,
        act=0.5,
        meaning="one update changed the policy more than any recipe intends",
    ),
    "clip_fraction": Threshold(
        label="clip fraction",
        watch=0.25,
        act=0.4,
        meaning="clipping removed a large part of the update",
    ),
    "value_nrmse": Threshold(
        label="value error",
        watch=1.0,
        act=2.0,
        meaning="the critic predicts returns no better than their mean",
    ),
    "gradient_norm": Threshold(
        label="gradient norm",
        # Healthy updates of the recipes are around 10; values unusual for a run raise an alarm.
        watch=20.0,
        act=50.0,
        meaning="the policy's gradient is far above the clipping range",
    ),
    "entropy": Threshold(
        label="policy entropy",
        watch=0.3,
        act=0.1,
        is_low_bad=True,
        meaning="the policy has nearly stopped exploring",
    ),
    "head_entropy": Threshold(
        label="head entropy",
        watch=0.25,
        act=0.1,
        is_low_bad=True,
        meaning="this head has nearly stopped exploring",
    ),
    "drop_from_best": Threshold(
        label="drop from best",
        watch=3.0,
        act=8.0,
        unit="pp",
        meaning="the env is well below its own best of this episode",
    ),
    "steps_without_best": Threshold(
        label="steps without a new best",
        watch=12.0,
        act=30.0,
        meaning="the env has stopped improving",
    ),
    "silence": Threshold(
        label="silence",
        watch=10.0,
        act=60.0,
        unit="s",
        meaning="no event has arrived for longer than this run's usual pause",
    ),
}
"""Every threshold that a view uses for colours or ranking."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Memory limits of the view model and window sizes of its statistics."""

    max_rounds: int = 512
    """Above this the older half is thinned; the first and the newest rounds are always kept."""
    max_seeds: int = 512
    max_alarms: int = 64
    max_history: int = 256
    """Steps stored per episode."""
    sparkline: int = 32
    max_actions: int = 16
    max_recent_events: int = 256
    """Window of events for the event rate."""
    max_positions: int = 256
    """Window of positions for the rate and the estimated time left."""
    rounds_to_judge: int = 8
    """Minimum number of rounds for a verdict on learning."""
    rollbacks_to_act: int = 3
    """Rollbacks of one env from which on it needs attention; a single one is dealt with."""
    trend_rounds: int = 20
    """Window of rounds for the learning trend."""


LIMITS: Final = Limits()


def grade(name: str, value: float | None) -> Grade:
    """Return the grade of a value against the named threshold."""
    if value is None:
        return Grade.UNKNOWN
    threshold = THRESHOLDS[name]
    sign = -1.0 if threshold.is_low_bad else 1.0
    if sign * value >= sign * threshold.act:
        return Grade.ACT
    return Grade.WATCH if sign * value >= sign * threshold.watch else Grade.OK


def worst(*grades: Grade) -> Grade:
    """Return the worst of the grades; UNKNOWN if there are none."""
    return max(grades, key=lambda item: item.rank, default=Grade.UNKNOWN)
