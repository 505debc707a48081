"""`esper-train check`: check that a machine computes what Esper promises."""

from argparse import ArgumentParser, Namespace

from esper.leyline.errors import ExitCode
from esper.scripts.terminal import print_json, print_table

__all__ = ["add_check_flags", "run_check"]

RESULTS = {True: "ok", False: "FAILED", None: "-"}


def add_check_flags(parser: ArgumentParser) -> None:
    """Add the flags of `check`."""
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda or cuda:N (default: CUDA if available)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run_check(arguments: Namespace) -> int:
    """Check a machine; the exit code is 1 if a check has failed."""
    from esper.simic.evaluation.machine_check import check_machine  # loads torch

    rows = list(check_machine(arguments.device))
    if arguments.json:
        print_json(rows)
    else:
        table = [(row.name, RESULTS[row.is_passed], row.detail) for row in rows]
        print_table(("check", "result", "found"), table)
    has_failed = any(row.is_passed is False for row in rows)
    return ExitCode.FAILED if has_failed else ExitCode.OK
