"""Alpha: how much of a seed reaches the host's output, how it is mixed in, and how it moves."""

from enum import IntEnum
from typing import Final

import msgspec

__all__ = [
    "ALPHA_TOLERANCE",
    "DEFAULT_STEEPNESS",
    "MIN_STEEPNESS",
    "AlphaAlgorithm",
    "AlphaCurve",
    "AlphaMode",
    "AlphaState",
]

ALPHA_TOLERANCE: Final = 1e-6
"""Distance within which alpha counts as equal to its target."""

DEFAULT_STEEPNESS: Final = 12.0
MIN_STEEPNESS: Final = 0.1


class AlphaMode(IntEnum):
    """Whether alpha is at rest, rising or falling."""

    HOLD = 0
    UP = 1
    DOWN = 2


class AlphaCurve(IntEnum):
    """The shape of a ramp over its steps."""

    LINEAR = 1
    COSINE = 2
    SIGMOID = 3


class AlphaAlgorithm(IntEnum):
    """How seed and host are composed."""

    ADD = 1
    MULTIPLY = 2
    GATE = 3


class AlphaState(msgspec.Struct, frozen=True, kw_only=True):
    """The complete state of an alpha controller."""

    alpha: float = 0.0
    start: float = 0.0
    target: float = 0.0
    mode: AlphaMode = AlphaMode.HOLD
    curve: AlphaCurve = AlphaCurve.LINEAR
    steepness: float = DEFAULT_STEEPNESS
    steps_total: int = 0
    steps_done: int = 0

    @property
    def steps_to_target(self) -> int:
        """Return the number of ticks until the ramp reaches its target; 0 at rest."""
        return 0 if self.mode is AlphaMode.HOLD else max(self.steps_total - self.steps_done, 0)

    @property
    def velocity(self) -> float:
        """Return the mean change per tick of the current ramp."""
        if self.mode is AlphaMode.HOLD or self.steps_total == 0:
            return 0.0
        return (self.target - self.start) / self.steps_total

    @property
    def is_at_target(self) -> bool:
        """Return whether alpha is at rest on its target."""
        return self.mode is AlphaMode.HOLD and abs(self.alpha - self.target) <= ALPHA_TOLERANCE
