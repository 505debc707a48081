"""The one table of thresholds: what console, dashboard and report call worth a look or bad."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

__all__ = ["LIMITS", "THRESHOLDS", "Grade", "Limits", "Threshold", "grade", "worst"]


class Grade(StrEnum):
    """How a number stands against its threshold; the order is from best to worst."""

    UNKNOWN = "unknown"
    """Never measured."""
    OK = "ok"
    WATCH = "watch"
    ACT = "act"

    @property
    def rank(self) -> int:
        """Return 0 for unknown up to 3 for act."""
        return list(Grade).index(self)


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """Where a number starts to be worth a look, and where it asks for somebody to act."""

    label: str
    watch: float
    act: float
    is_low_bad: bool = False
    unit: str = ""
    meaning: str
    """What crossing it says, in words an operator can use."""


THRESHOLDS: Final[Mapping[str, Threshold]] = {
    "kl_divergence": Threshold(
        label="KL divergence",
        # The recipes stop an update at 0.015 or 0.03; the detector calls 0.1 a spike.
        watch=0.05,
        act=0.1,
        meaning="one update moved the policy further than any recipe intends",
    ),
    "clip_fraction": Threshold(
        label="clip fraction",
        watch=0.25,
        act=0.4,
        meaning="much of the update was cut off by the clip",
    ),
    "value_nrmse": Threshold(
        label="value error",
        watch=1.0,
        act=2.0,
        meaning="the critic predicts returns no better than their mean",
    ),
    "gradient_norm": Threshold(
        label="gradient norm",
        # Healthy updates of the recipes lie around 10; what is unusual for a run is an alarm.
        watch=20.0,
        act=50.0,
        meaning="the policy's gradient is far beyond what clipping is for",
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
"""Every threshold that a view colours or ranks by."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a run the view model keeps."""

    max_rounds: int = 512
    """Beyond that the older half is thinned; the first and the newest are always there."""
    max_seeds: int = 512
    max_alarms: int = 64
    max_history: int = 256
    """Steps of one episode."""
    sparkline: int = 32
    max_actions: int = 16
    max_recent_events: int = 256
    """Events that the event rate is taken from."""
    max_positions: int = 256
    """Positions that rate and remaining time are taken from."""
    rounds_to_judge: int = 4
    """Fewer than that say nothing about learning."""
    trend_rounds: int = 10
    """Rounds that the learning verdict looks back on."""


LIMITS: Final = Limits()


def grade(name: str, value: float | None) -> Grade:
    """Return how a value stands against the threshold of this name."""
    if value is None:
        return Grade.UNKNOWN
    threshold = THRESHOLDS[name]
    sign = -1.0 if threshold.is_low_bad else 1.0
    if sign * value >= sign * threshold.act:
        return Grade.ACT
    return Grade.WATCH if sign * value >= sign * threshold.watch else Grade.OK


def worst(*grades: Grade) -> Grade:
    """Return the worst of some grades, unknown when there is none."""
    return max(grades, key=lambda item: item.rank, default=Grade.UNKNOWN)
