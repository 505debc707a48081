"""Rows of the bench: what one measures, and how rows of all files are found and printed."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

ROWS: dict[str, Bench] = {}
"""Every bench there is, by the name of its goal."""
GROUPS: Final = ("T", "loop lag", "digits", "E", "leyline import", "V", "G")
"""Names begin with one of these; they are measured and listed in this order."""
LONG_FORM_ONLY: Final = ("G", "imports")
"""Without targets: they show how something grows, which the few points of the quick form cannot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One figure beside its target."""

    name: str
    measured: float
    unit: str
    target: float | None = None
    """None for a figure that only shows how something grows."""
    is_at_least: bool = False
    """The target is a lower bound."""
    note: str = ""
    """What the figure was taken on, where that matters."""

    @property
    def bound(self) -> str:
        """Return the target as it is printed."""
        sign = "≥" if self.is_at_least else "≤"
        return "" if self.target is None else f"{sign} {self.target:,.6g}"

    @property
    def is_met(self) -> bool:
        """Tell whether the target is reached, if there is one."""
        if self.target is None:
            return True
        if self.is_at_least:
            return self.measured >= self.target
        return self.measured <= self.target


Bench = Callable[[bool], Iterator[Row]]
"""Takes whether to be quick, yields the rows it measured."""


def bench(name: str) -> Callable[[Bench], Bench]:
    """Register a function as the bench of a goal."""

    def register(function: Bench) -> Bench:
        ROWS[name] = function
        return function

    return register


def load_all_benches() -> None:
    """Import every module of this package, which registers its benches."""
    package = importlib.import_module("tools.bench")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"tools.bench.{module.name}")


def ordered_names() -> list[str]:
    """Return the names of all benches, those of a group by their numbers."""
    return sorted(ROWS, key=_place)


def quick_names() -> list[str]:
    """Return the names of the benches that the quick form runs unasked."""
    return [name for name in ordered_names() if not name.startswith(LONG_FORM_ONLY)]


def _place(name: str) -> tuple[int, int, str]:
    group = next((at for at, prefix in enumerate(GROUPS) if name.startswith(prefix)), len(GROUPS))
    number = re.search(r"\d+", name)
    return group, int(number[0]) if number else 0, name
