"""Signs and colours of the grades on a terminal."""

from typing import Final

from rich.text import Text

from esper.karn.view.thresholds import Grade

__all__ = ["STYLES", "grade_sign"]

STYLES: Final = {
    Grade.OK: "green",
    Grade.WATCH: "yellow",
    Grade.ACT: "bold red",
    Grade.UNKNOWN: "dim",
}
SIGNS: Final = {Grade.OK: "✓", Grade.WATCH: "▲", Grade.ACT: "✗", Grade.UNKNOWN: "·"}
ASCII_SIGNS: Final = {Grade.OK: "+", Grade.WATCH: "!", Grade.ACT: "X", Grade.UNKNOWN: "."}


def grade_sign(level: Grade, is_ascii: bool) -> Text:
    """Return the sign of a grade and a space, in its colour."""
    return Text((ASCII_SIGNS if is_ascii else SIGNS)[level] + " ", style=STYLES[level])
