"""`python -m tools.soak [--quick] [ROW ...]`: break things, and print what held."""

import argparse
import importlib
import os
import platform
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from tools.bench.rows import Row
from tools.soak.results import (
    PROMISES,
    Result,
    Results,
    figure_of,
    keep,
    number_text,
    read_results,
    write_results,
)

from esper.nissa.run_directory import cpu_model

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
}
assert MODULES.keys() == PROMISES.keys()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows asked for, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions, under two minutes")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(MODULES)}")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.rows if name not in MODULES]
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(MODULES)}")
    print(f"{'figure':<52}{'measured':>12}  {'target':>14}  unit")
    results: Results = {}
    num_broken = 0
    for name in arguments.rows or MODULES:
        try:
            results[name] = run_row(name, is_quick=arguments.quick)
        except AssertionError as error:
            num_broken += 1
            print(f"{name} BROKEN: {error}", flush=True)
        else:
            write_results(keep(read_results(), results))
    is_met = all(figure.is_met for result in results.values() for figure in result.figures)
    return 0 if is_met and not num_broken else 1


def run_row(name: str, *, is_quick: bool) -> Result:
    """Run one row and print its figures."""
    began_s = time.perf_counter()
    found: list[Row] = []
    for module in MODULES[name]:
        for row in importlib.import_module(f"tools.soak.{module}").rows(is_quick):
            print(_line(row), flush=True)
            found.append(row)
    return Result(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=f"python -m tools.soak{' --quick' if is_quick else ''} {name}",
        is_quick=is_quick,
        took_s=round(time.perf_counter() - began_s, 1),
        machine=f"{os.cpu_count()} cores of {cpu_model()}, Python {platform.python_version()}",
        figures=[figure_of(row) for row in found],
    )


def _line(row: Row) -> str:
    target = f"{'≥' if row.is_at_least else '≤'} {number_text(row.target)}"
    verdict = "" if row.is_met else "  MISSED"
    note = f"  ({row.note})" if row.note else ""
    return f"{row.name:<52}{number_text(row.measured):>12}  {target:>14}  {row.unit}{verdict}{note}"


if __name__ == "__main__":
    sys.exit(main())
