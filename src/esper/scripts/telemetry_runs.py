"""`esper-telemetry runs`: the table of runs."""

import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from esper.karn.view.run_list import RunRow, list_runs
from esper.leyline.errors import ExitCode, UnknownNameError, UnreadableFileError, UsageError
from esper.leyline.printable import printable
from esper.scripts.terminal import Colour, print_json, print_table

__all__ = ["run_runs"]


class Column(NamedTuple):
    """A column of the table: what it shows, what it is sorted by, and when it gives way."""

    show: Callable[[RunRow], str]
    key: Callable[[RunRow], Any]
    """The value to sort by; rows without one come last."""
    priority: int = 0
    """The column of the highest number is left out first on a narrow terminal."""
    is_descending: bool = False


def _text(name: str, row: RunRow) -> str:
    value = getattr(row, name)
    return "-" if value is None else str(value)


def _number(name: str, form: str, row: RunRow) -> str:
    value = getattr(row, name)
    return "-" if value is None else format(value, form)


def _label(name: str, row: RunRow) -> str:
    return getattr(row, name) or ""


def _rounds(row: RunRow) -> str:
    return f"{row.rounds_completed}/{_text('num_rounds', row)}"


def _age(row: RunRow) -> str:
    seconds = row.age_s
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def _size(row: RunRow) -> str:
    size = row.num_bytes
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def _tags(row: RunRow) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(row.tags.items()))


def _plain(name: str, priority: int = 0) -> Column:
    return Column(partial(_text, name), attrgetter(name), priority)


def _figure(name: str, form: str) -> Column:
    return Column(partial(_number, name, form), attrgetter(name), is_descending=True)


COLUMNS: Final[Mapping[str, Column]] = {
    "id": _plain("run_id"),
    "name": Column(partial(_label, "name"), attrgetter("name")),
    "task": _plain("task", 2),
    "controller": _plain("controller", 4),
    "engine": _plain("engine", 7),
    "state": _plain("state"),
    "rounds": Column(_rounds, attrgetter("rounds_completed"), 1, is_descending=True),
    "accuracy": _figure("accuracy_pct", ".1f"),
    "return": _figure("task_return", "+.2f"),
    "verdict": Column(partial(_label, "verdict"), attrgetter("verdict"), 3),
    "age": Column(_age, attrgetter("age_s"), 1),
    "size": Column(_size, attrgetter("num_bytes"), 6, is_descending=True),
    "tags": Column(_tags, _tags, 5),
}

_FILTERS: Final[Mapping[str, Callable[[RunRow], object]]] = {
    "id": attrgetter("run_id"),
    **{
        name: attrgetter(name)
        for name in ("name", "task", "controller", "engine", "state", "group", "seed")
    },
}


def run_runs(arguments: Namespace) -> int:
    """List the runs of a directory."""
    directory: Path = arguments.directory
    if arguments.sort not in COLUMNS:
        raise UnknownNameError("column", arguments.sort, COLUMNS)
    if not directory.is_dir():
        raise UnreadableFileError(directory, "no such directory; name the one that holds runs")
    if arguments.limit is not None and arguments.limit < 1:
        raise UsageError(f"--limit {arguments.limit}: must be at least 1")
    wanted = [_parsed(text) for text in arguments.filter]
    rows = [
        row
        for row in list_runs(directory, time.time())
        if all(_fits(row, *pair) for pair in wanted)
    ]
    rows = _sorted(rows, COLUMNS[arguments.sort], arguments.reverse)[: arguments.limit]
    if arguments.json:
        print_json(rows)
    elif rows:
        _print(rows)
    else:
        which = " that fits" if wanted else ""
        print(printable(f"no run{which} in {directory}"))
    return ExitCode.OK


def _parsed(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise UsageError(f"--filter {text}: expected KEY=VALUE, such as --filter task=digits")
    return key, value


def _fits(row: RunRow, key: str, value: str) -> bool:
    found = _FILTERS[key](row) if key in _FILTERS else row.tags.get(key)
    return found is not None and fnmatchcase(str(found), value)


def _sorted(rows: Sequence[RunRow], column: Column, is_reversed: bool) -> list[RunRow]:
    known = [row for row in rows if column.key(row) is not None]
    unknown = [row for row in rows if column.key(row) is None]
    known.sort(key=column.key, reverse=column.is_descending != is_reversed)
    return known + unknown


def _print(rows: Sequence[RunRow]) -> None:
    """Print the table; on a terminal, without the columns that it has no room for."""
    names = [name for name in COLUMNS if name != "tags" or any(row.tags for row in rows)]
    cells = {name: [COLUMNS[name].show(row) for row in rows] for name in names}
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    while width is not None and _width(cells) > width and len(cells) > 1:
        del cells[max(cells, key=lambda name: COLUMNS[name].priority)]
    print_table(list(cells), zip(*cells.values(), strict=True), colours=[*map(_colour, rows)])


def _width(cells: Mapping[str, Sequence[str]]) -> int:
    return sum(max(map(len, (name, *column))) + 2 for name, column in cells.items()) - 2


def _colour(row: RunRow) -> Colour | None:
    return {"failed": Colour.RED, "killed": Colour.YELLOW, "running": Colour.GREEN}.get(row.state)
