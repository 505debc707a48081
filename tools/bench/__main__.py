"""`python -m tools.bench [--quick] [ROW ...]`: print figures beside their targets."""

import argparse
import sys
from collections.abc import Sequence

from tools.bench.rows import ROWS, Row, load_all_benches


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the rows asked for, or all of them."""
    load_all_benches()
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, rougher figures")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.rows if name not in ROWS]
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    print(f"{'row':<44}{'measured':>14}  {'target':>14}  unit")
    for name in arguments.rows or ROWS:
        for row in ROWS[name](arguments.quick):
            print(_line(row), flush=True)
    return 0


def _line(row: Row) -> str:
    sign = "≥" if row.is_at_least else "≤"
    verdict = "" if row.is_met else "  MISSED"
    target = "" if row.target is None else f"{sign} {row.target:,.6g}"
    note = f"  ({row.note})" if row.note else ""
    return f"{row.name:<44}{row.measured:>14,.6g}  {target:>14}  {row.unit}{verdict}{note}"


if __name__ == "__main__":
    sys.exit(main())
