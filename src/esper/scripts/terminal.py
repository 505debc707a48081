"""Plain tables, colour and JSON on standard output."""

import os
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum

__all__ = ["Colour", "paint", "print_json", "print_table"]


class Colour(StrEnum):
    """ANSI colours that are legible on dark and light backgrounds."""

    GREEN = "32"
    RED = "31"
    YELLOW = "33"
    DIM = "2"


def paint(text: str, colour: Colour | None) -> str:
    """Colour a text on a terminal; pipes, files and NO_COLOR get it plain."""
    if colour is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{colour.value}m{text}\x1b[0m"


def print_json(value: object) -> None:
    """Print a value in the JSON format of all `--json` flags, manifests and baselines."""
    # Imported here because most commands print tables only.
    from esper.leyline.untyped_json import readable_json

    print(readable_json(value).decode(), end="")


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    colours: Sequence[Colour | None] = (),
) -> None:
    """Print rows under a header; numeric columns are right-aligned."""
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    is_number = [
        len(table) > 1 and all(_is_number(row[index]) for row in table[1:])
        for index in range(len(header))
    ]
    for number, row in enumerate(table):
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, is_number, strict=True)
        )
        colour = Colour.DIM if number == 0 else (colours[number - 1] if colours else None)
        print(paint("  ".join(cells).rstrip(), colour))


def _is_number(text: str) -> bool:
    return text.lstrip("+-").replace(".", "", 1).isdigit() or text in ("", "-")
