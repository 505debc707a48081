"""`python -m tools.bench [--quick] [--save] [ROW ...]`: print figures beside their targets.

Without rows named, or with --save, the figures are also written to tools/bench/results, and those
of docs/performance.md are brought up to date.
"""

import argparse
import sys
from collections.abc import Sequence

from tools.bench.results import refresh_document, write_results
from tools.bench.rows import ROWS, Row, load_all_benches


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the rows asked for, or all of them."""
    load_all_benches()
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, rougher figures")
    parser.add_argument("--save", action="store_true", help="write the figures in any case")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.rows if name not in ROWS]
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    print(f"{'row':<52}{'measured':>14}  {'target':>14}  unit")
    measured: list[Row] = []
    for name in arguments.rows or ROWS:
        for row in ROWS[name](arguments.quick):
            print(_line(row), flush=True)
            measured.append(row)
    if arguments.save or not (arguments.rows or arguments.quick):
        print(f"written to {write_results(measured, is_quick=arguments.quick)}")
        refresh_document()
    return 0


def _line(row: Row) -> str:
    verdict = "" if row.is_met else "  MISSED"
    note = f"  ({row.note})" if row.note else ""
    return f"{row.name:<52}{row.measured:>14,.6g}  {row.bound:>14}  {row.unit}{verdict}{note}"


if __name__ == "__main__":
    sys.exit(main())
