"""`python -m tools.bench [--quick] [--save] [ROW ...]`: print figures beside their targets.

A full run without rows named, or any run with --save, also writes the figures to
tools/bench/results and brings those of docs/performance.md up to date.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from tools.bench.results import refresh_document, write_results
from tools.bench.rows import ROWS, Row, load_all_benches, ordered_names, quick_names
from tools.bench.workloads import install_bench_tasks


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the rows asked for, or all of them."""
    load_all_benches()
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="rows with targets, rougher figures")
    parser.add_argument("--save", action="store_true", help="write the figures in any case")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ordered_names())}")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.rows if name not in ROWS]
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ordered_names())}")
    install_bench_tasks()
    print(f"{'row':<52}{'measured':>14}  {'target':>14}  unit")
    measured: list[Row] = []
    began_s = time.monotonic()
    names = quick_names() if arguments.quick else ordered_names()
    for name in arguments.rows or names:
        started_s = time.monotonic()
        for row in ROWS[name](arguments.quick):
            print(_line(row), flush=True)
            measured.append(row)
        print(f"  {name} took {time.monotonic() - started_s:.0f} s", flush=True)
    took_s = time.monotonic() - began_s
    print(f"  all took {took_s:.0f} s")
    if arguments.save or not (arguments.rows or arguments.quick):
        is_whole = not arguments.rows
        path = write_results(
            measured, is_quick=arguments.quick, took_s=took_s if is_whole else None
        )
        print(f"written to {path}")
        refresh_document()
    return 0


def _line(row: Row) -> str:
    verdict = "" if row.is_met else "  MISSED"
    note = f"  ({row.note})" if row.note else ""
    return f"{row.name:<52}{row.measured:>14,.6g}  {row.bound:>14}  {row.unit}{verdict}{note}"


if __name__ == "__main__":
    sys.exit(main())
