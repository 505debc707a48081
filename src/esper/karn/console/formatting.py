"""Formatting of numbers, durations and untrusted text for terminals; missing values are dashes."""

from collections.abc import Sequence
from typing import Final

__all__ = ["MISSING", "SHORT_STAGE_LABELS", "STAGE_LABELS", "duration", "number", "sparkline"]

MISSING: Final = "-"
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS: Final = "_.:-=+*#"

STAGE_LABELS: Final = {
    "DORMANT": "empty",
    "GERMINATED": "germ",
    "TRAINING": "train",
    "BLENDING": "blend",
    "HOLDING": "hold",
    "FOSSILIZED": "fossil",
    "PRUNED": "pruned",
    "EMBARGOED": "embargo",
    "RESETTING": "reset",
}

SHORT_STAGE_LABELS: Final = {
    "GERMINATED": "germ",
    "TRAINING": "train",
    "BLENDING": "blend",
    "HOLDING": "hold",
    "FOSSILIZED": "kept",
    "PRUNED": "cut",
    "EMBARGOED": "wait",
    "RESETTING": "reset",
}
"""At most five letters, for narrow terminals."""


def number(value: float | None, pattern: str = ".2f", unit: str = "") -> str:
    """Format a number; a dash if it was not measured."""
    return MISSING if value is None else f"{value:{pattern}}{unit}"


def duration(seconds: float | None) -> str:
    """Format a duration with at most two units."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"


def sparkline(values: Sequence[float | None], *, is_ascii: bool = False) -> str:
    """Render values as a row of block characters; missing values are spaces."""
    blocks = _ASCII_BLOCKS if is_ascii else _BLOCKS
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, span = min(known), (max(known) - min(known)) or 1.0
    last = len(blocks) - 1
    return "".join(
        " " if value is None else blocks[round((value - low) / span * last)] for value in values
    )
