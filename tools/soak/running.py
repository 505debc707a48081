"""Runs the rows of the soak tests, each in its own process, one per core at a time."""

import importlib
import multiprocessing
import os
import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from datetime import UTC, datetime

from tests.builders.inherited_signals import heed_signals
from tools.bench.rows import Row
from tools.soak.results import Result, figure_of

from esper.nissa.storage.run_directory import cpu_model

MODULES = {
    "L1": ("kills",),
    "L2": ("schedules",),
    "L3": ("traces",),
    "L4": ("damage",),
    "L5": ("signals",),
    "L6": ("faults", "breakdowns"),
    "L7": ("lives",),
    "L8": ("fuzz",),
    "L9": ("siege",),
    "L10": ("endurance",),
    "L11": ("startup",),
    "L12": ("surroundings",),
    "L13": ("visiting",),
    "L14": ("tampering",),
    "L15": ("volatile",),
    "L16": ("rivals",),
    "L17": ("guided",),
    "L18": ("process_kills",),
    "L19": ("actor_kills",),
    "L20": ("mutants",),
    "L21": ("engine_signals",),
}
LONG = ("L17", "L10", "L16", "L6")
"""Started first, so that no core is left without work at the end."""
ALONE = ("L9", "L13", "L21")
"""They measure time, so each runs alone after the others."""


def finished(names: Sequence[str], *, is_quick: bool) -> Iterator[tuple[str, Future[Result]]]:
    """Run rows and yield each when it is done."""
    together = sorted((name for name in names if name not in ALONE), key=_start_order)
    groups = [together, *([name] for name in names if name in ALONE)]
    with ProcessPoolExecutor(
        os.cpu_count(), multiprocessing.get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        for group in groups:
            running = {pool.submit(run_row, name, is_quick=is_quick): name for name in group}
            for future in as_completed(running):
                yield running[future], future


def _start_order(name: str) -> int:
    return LONG.index(name) if name in LONG else len(LONG)


def run_row(name: str, *, is_quick: bool) -> Result:
    """Run one row in this process."""
    began_s = time.perf_counter()
    heed_signals()
    rows: list[Row] = []
    for module in MODULES[name]:
        rows += importlib.import_module(f"tools.soak.{module}").rows(is_quick)
    return Result(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=f"python -m tools.soak{' --quick' if is_quick else ''} {name}",
        is_quick=is_quick,
        took_s=round(time.perf_counter() - began_s, 1),
        machine=f"{os.cpu_count()} cores of {cpu_model()}, Python {platform.python_version()}",
        figures=[figure_of(row) for row in rows],
    )
