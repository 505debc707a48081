"""The rows of the benchmark: their type, their registration and their order."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

ROWS: dict[str, Bench] = {}
"""All benchmarks, by name."""
GROUPS: Final = ("T", "loop lag", "digits", "W", "E", "leyline import", "V", "G")
"""Names begin with one of these; they are measured and listed in this order."""
LONG_FORM_ONLY: Final = ("G", "imports")
"""Rows without targets show scaling, for which the quick form has too few points."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where a figure stands in one of the plots of `tools/bench/plots.py`."""

    plot: str
    x: float
    series: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One figure beside its target."""

    name: str
    measured: float
    unit: str
    target: float | None = None
    """None for a figure without a target."""
    is_at_least: bool = False
    """Whether the target is a lower bound."""
    note: str = ""
    """Details of the measurement."""
    point: Point | None = None
    """None for a figure that is not plotted."""

    @property
    def bound(self) -> str:
        """Return the target as printed."""
        sign = "≥" if self.is_at_least else "≤"
        return "" if self.target is None else f"{sign} {self.target:,.6g}"

    @property
    def is_met(self) -> bool:
        """Return whether the target is met; True without a target."""
        if self.target is None:
            return True
        if self.is_at_least:
            return self.measured >= self.target
        return self.measured <= self.target


Bench = Callable[[bool], Iterator[Row]]
"""Takes `is_quick` and yields the measured rows."""


def bench(name: str) -> Callable[[Bench], Bench]:
    """Register a function as the benchmark with this name."""

    def register(function: Bench) -> Bench:
        ROWS[name] = function
        return function

    return register


def load_all_benches() -> None:
    """Import every module of this package, which registers its benchmarks."""
    package = importlib.import_module("tools.bench")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"tools.bench.{module.name}")


def ordered_names() -> list[str]:
    """Return the names of all benchmarks, by group and number."""
    return sorted(ROWS, key=_place)


def quick_names() -> list[str]:
    """Return the names of the benchmarks that the quick form runs by default."""
    return [name for name in ordered_names() if not name.startswith(LONG_FORM_ONLY)]


def _place(name: str) -> tuple[int, int, str]:
    group = next((at for at, prefix in enumerate(GROUPS) if name.startswith(prefix)), len(GROUPS))
    number = re.search(r"\d+", name)
    return group, int(number[0]) if number else 0, name
