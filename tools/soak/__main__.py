"""`python -m tools.soak [--quick] [ROW ...]`: inject faults and print the results."""

import argparse
import sys
from collections.abc import Sequence

from tools.soak.results import Figure, Results, keep, number_text, read_results, write_results
from tools.soak.running import MODULES, finished


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested rows, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions, under two minutes")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(MODULES)}")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.rows if name not in MODULES]
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(MODULES)}")
    print(f"{'figure':<52}{'measured':>12}  {'target':>14}  unit", flush=True)
    results: Results = {}
    num_broken = 0
    for name, outcome in finished(arguments.rows or list(MODULES), is_quick=arguments.quick):
        try:
            results[name] = outcome.result()
        except AssertionError as error:
            num_broken += 1
            # The cause is where it happened, in the process that ran the row.
            print(f"{name} BROKEN: {error}{error.__cause__ or ''}", flush=True)
        else:
            print("\n".join(map(_line, results[name].figures)), flush=True)
            write_results(keep(read_results(), results))
    is_met = all(figure.is_met for result in results.values() for figure in result.figures)
    return 0 if is_met and not num_broken else 1


def _line(figure: Figure) -> str:
    target = f"{'≥' if figure.is_at_least else '≤'} {number_text(figure.target)}"
    verdict = "" if figure.is_met else "  MISSED"
    note = f"  ({figure.note})" if figure.note else ""
    measured = number_text(figure.measured)
    return f"{figure.name:<52}{measured:>12}  {target:>14}  {figure.unit}{verdict}{note}"


if __name__ == "__main__":
    sys.exit(main())
