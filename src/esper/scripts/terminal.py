"""Plain tables, colour and JSON on standard output."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from esper.leyline.printable import printable

__all__ = [
    "Colour",
    "discard_output",
    "dispensable_output",
    "paint",
    "print_json",
    "print_table",
    "text_for_output",
]


class Colour(StrEnum):
    """ANSI colours that are legible on dark and light backgrounds."""

    GREEN = "32"
    RED = "31"
    YELLOW = "33"
    DIM = "2"


def paint(text: str, colour: Colour | None) -> str:
    """Escape a text and colour it on a terminal; pipes, files and NO_COLOR get it plain."""
    text = printable(text)
    if colour is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{colour.value}m{text}\x1b[0m"


def print_json(value: object) -> None:
    """Print a value in the JSON format of all `--json` flags, manifests and baselines."""
    # Imported here because most commands print tables only.
    from esper.leyline.untyped_json import readable_json

    for line in readable_json(value).decode().rstrip("\n").split("\n"):
        print(text_for_output(line))


def text_for_output(text: str) -> str:
    """Escape a text for a terminal; programs that read a pipe or file get it as it is."""
    return printable(text) if sys.stdout.isatty() else text


@contextlib.contextmanager
def dispensable_output() -> Iterator[None]:
    """Print what a command can do without: an output that fails does not change its exit code."""
    try:
        yield
        sys.stdout.flush()
    except (OSError, ValueError):
        discard_output()


def discard_output() -> None:
    """Send the rest of the output nowhere; Python would try to write it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    colours: Sequence[Colour | None] = (),
) -> None:
    """Print rows under a header; numeric columns are right-aligned."""
    table = [[printable(cell) for cell in row] for row in (header, *rows)]
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
