"""`esper-telemetry`: the command that reads what runs have told. Never imports torch."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from esper.leyline.errors import ExitCode
from esper.leyline.telemetry import events_schema
from esper.scripts.cli import add_version, run_command

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `esper-telemetry` and return its exit code."""
    return run_command(_build_parser(), argv)


def _build_parser() -> ArgumentParser:
    parser = ArgumentParser(prog="esper-telemetry", description="Read what runs have told.")
    add_version(parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    schema = commands.add_parser("schema", help="print the JSON Schema of the events")
    schema.set_defaults(command=_print_schema)
    return parser


def _print_schema(_: Namespace) -> int:
    json.dump(events_schema(), sys.stdout, indent=2)
    print()
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
