"""`esper-telemetry`: the command that reads the telemetry of runs. Never imports torch."""

from esper.scripts.startup import end_process, prepare_process

if __name__ == "__main__":
    prepare_process()  # before the imports below, which take a moment

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from esper.leyline.errors import ExitCode
from esper.scripts.cli import CommandParser, add_version, interruptible, run_command

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Subparsers = _SubParsersAction[CommandParser]

__all__ = ["build_parser", "main"]

_RUN_HELP = "run: directory, log, id, beginning of an id, name, or 'latest'"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `esper-telemetry` and return its exit code."""
    return run_command(build_parser(), argv)


def build_parser() -> ArgumentParser:
    """Return the parser of `esper-telemetry`."""
    parser = CommandParser(prog="esper-telemetry", description="Read the telemetry of runs.")
    add_version(parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_runs(commands)
    _add_count(commands)
    _add_baseline(commands)
    _add_diff(commands)
    _add_tail(commands)
    _add_validate(commands)
    _add_query(commands)
    _add_export(commands)
    _add_report(commands)
    _add_serve(commands)
    _add_mcp(commands)
    schema = commands.add_parser("schema", help="print the JSON Schema of the events")
    schema.set_defaults(command=_print_schema)
    return parser


def _add_runs(commands: "Subparsers") -> None:
    runs = commands.add_parser("runs", help="list runs")
    runs.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="directory of runs (default: runs)",
    )
    runs.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only runs with this id, name, task, controller, engine, state, group, seed or tag; "
        "* and ? match any text; may be repeated (default: all runs)",
    )
    runs.add_argument(
        "--sort", default="age", metavar="COLUMN", help="column to sort by (default: age)"
    )
    runs.add_argument("--reverse", action="store_true", help="reverse the order")
    runs.add_argument("--limit", type=int, metavar="N", help="print the first N (default: all)")
    runs.add_argument("--json", action="store_true", help="print a JSON array with all facts")
    runs.set_defaults(command=_runs)


def _add_count(commands: "Subparsers") -> None:
    count = commands.add_parser("count", help="count events by type")
    count.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help=f"{_RUN_HELP}; directory of runs, JSONL file (plain, gz or zst), or - for standard "
        "input",
    )
    count.add_argument(
        "--by",
        choices=("type", "env", "round", "severity", "kind"),
        default="type",
        help="what to count by (default: type)",
    )
    count.add_argument("--json", action="store_true", help="print one JSON object")
    count.add_argument(
        "--lenient", action="store_true", help="exit with 0 even if some lines are not valid events"
    )
    count.add_argument(
        "--baseline", type=Path, metavar="FILE", help="compare with a baseline (default: none)"
    )
    count.add_argument(
        "--trust",
        action="store_true",
        help="print the counts that events.crc states, without reading or verifying the log",
    )
    count.set_defaults(command=_count)


def _add_baseline(commands: "Subparsers") -> None:
    baseline = commands.add_parser(
        "baseline", help="capture and list baselines to compare runs with"
    )
    actions = baseline.add_subparsers(title="actions", required=True, metavar="ACTION")
    capture = actions.add_parser("capture", help="write the baseline of a run")
    capture.add_argument("run", type=Path, metavar="RUN", help=_RUN_HELP)
    capture.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    capture.set_defaults(command=_capture)
    listing = actions.add_parser("list", help="list the saved baselines")
    listing.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=Path("telemetry/baselines"),
        metavar="DIR",
        help="directory of the baselines (default: telemetry/baselines)",
    )
    listing.set_defaults(command=_list_baselines)


def _add_diff(commands: "Subparsers") -> None:
    diff = commands.add_parser(
        "diff", help="compare two runs or baselines; exit code 0: same, 1: different, 2: unreadable"
    )
    for side in ("left", "right"):
        diff.add_argument(
            side, type=Path, metavar=side.upper(), help=f"{_RUN_HELP}, or a baseline's .json"
        )
    diff.add_argument(
        "--all", action="store_true", help="list the counts of all event types, equal ones too"
    )
    diff.add_argument(
        "--raw", action="store_true", help="print the lines of the first event that differs"
    )
    diff.add_argument("--json", action="store_true", help="print one JSON object")
    diff.set_defaults(command=_diff)


def _add_tail(commands: "Subparsers") -> None:
    tail = commands.add_parser(
        "tail",
        help="show the events of a log file or a live run",
        description="Show the events of a log file or a live run. Times are local; rounds (r), "
        "steps (s) and envs (e) count from 0, as in the log.",
    )
    tail.add_argument(
        "source",
        metavar="URL|RUN",
        help=f"ws://HOST:PORT/ws of a live run, or {_RUN_HELP}",
    )
    tail.add_argument("-f", "--follow", action="store_true", help="keep reading as the file grows")
    tail.add_argument(
        "--type",
        action="append",
        default=[],
        metavar="TYPE",
        help="only events of this type (may be repeated)",
    )
    tail.add_argument(
        "--env",
        action="append",
        type=int,
        default=[],
        metavar="N",
        help="only events of this env (may be repeated)",
    )
    tail.add_argument(
        "--since",
        type=int,
        metavar="SEQ",
        help="first sequence number (default: the first of a file; new events of a live run)",
    )
    tail.add_argument(
        "--json", action="store_true", help="print the raw JSON lines (default in a pipe)"
    )
    tail.add_argument("--stats", action="store_true", help="print only counts and rate at the end")
    tail.add_argument(
        "--token",
        metavar="TEXT",
        help="access token of the server, or @FILE (default: $ESPER_SERVE_TOKEN)",
    )
    tail.set_defaults(command=_tail)


def _add_validate(commands: "Subparsers") -> None:
    validate = commands.add_parser(
        "validate",
        help="check a run's log: CRC, sequence numbers, schema, event order, count identities",
    )
    validate.add_argument("run", type=Path, metavar="RUN", help=_RUN_HELP)
    validate.add_argument("--json", action="store_true", help="print one JSON object")
    validate.set_defaults(command=_validate)


def _add_query(commands: "Subparsers") -> None:
    query = commands.add_parser(
        "query",
        help="query runs with SQL (requires the extra 'query')",
        description="Query runs with SQL (requires the extra 'query'). Times are UTC; rounds, "
        "steps and envs count from 0, as in the log.",
    )
    query.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help=f"{_RUN_HELP}; or directory of runs"
    )
    query.add_argument("sql", nargs="*", metavar="SQL", help="SQL statement over the views")
    query.add_argument("--views", action="store_true", help="list the views")
    query.add_argument(
        "--format",
        choices=("table", "json", "csv"),
        default="table",
        help="output format (default: table)",
    )
    query.set_defaults(command=_query)


def _add_export(commands: "Subparsers") -> None:
    export = commands.add_parser(
        "export",
        help="write a run to TensorBoard, W&B, Parquet, CSV or a plug-in's sink",
        description="Write a run to TensorBoard, W&B, Parquet, CSV or a plug-in's sink. Rounds "
        "and env steps count from 1 in TensorBoard and W&B, from 0 in the files.",
    )
    export.add_argument("run", type=Path, metavar="RUN", help=_RUN_HELP)
    export.add_argument(
        "--to",
        required=True,
        metavar="SINK",
        help="tensorboard[:DIR], wandb[:PROJECT], jsonl:PATH, parquet, csv, or a plug-in's sink",
    )
    export.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="what may also stand behind the colon; of parquet and csv, a new directory (default: "
        "a directory of that name in the run)",
    )
    export.add_argument(
        "--continue",
        action="store_true",
        dest="is_continued",
        help="deliver only what this sink has not got yet, from the run or an earlier export",
    )
    export.set_defaults(command=_export)


def _add_report(commands: "Subparsers") -> None:
    report = commands.add_parser("report", help="write a self-contained HTML report of a run")
    report.add_argument("run", type=Path, metavar="RUN", help=_RUN_HELP)
    report.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="output file (default: report.html)",
    )
    report.add_argument(
        "--baseline", type=Path, metavar="FILE", help="compare with a baseline (default: none)"
    )
    report.set_defaults(command=_report)


def _add_serve(commands: "Subparsers") -> None:
    serve = commands.add_parser(
        "serve", help="serve the dashboard of a run, or the list of a directory's runs"
    )
    serve.add_argument(
        "run", type=Path, metavar="RUN|DIR", help=f"{_RUN_HELP}; or directory of runs"
    )
    serve.add_argument(
        "--address", metavar="HOST:PORT", help="address to listen on (default: 127.0.0.1:8765)"
    )
    serve.add_argument(
        "--token",
        metavar="TEXT",
        help="token clients must send, or @FILE (default: $ESPER_SERVE_TOKEN; none on loopback)",
    )
    serve.set_defaults(command=_serve)


def _add_mcp(commands: "Subparsers") -> None:
    mcp = commands.add_parser(
        "mcp",
        help="serve runs to agents over the Model Context Protocol (requires the extra 'mcp')",
        description="Serve runs to agents over the Model Context Protocol, on standard input and "
        "output, read-only (requires the extra 'mcp'; SQL also 'query').",
    )
    mcp.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="directory of runs (default: runs)",
    )
    mcp.set_defaults(command=_mcp)


# Each command imports only what it needs, which keeps the start-up time of `count` low. A signal
# ends the process at once until then, and unwinds the command afterwards: readers have child
# processes, and files are written under a temporary name. A query has neither, and a server
# handles signals itself.


def _runs(arguments: Namespace) -> int:
    from esper.scripts.telemetry_runs import run_runs  # see above

    return run_runs(arguments)


def _count(arguments: Namespace) -> int:
    from esper.scripts.telemetry_count import run_count  # see above

    with interruptible():
        return run_count(arguments)


def _capture(arguments: Namespace) -> int:
    from esper.scripts.telemetry_compare import run_capture  # see above

    with interruptible():
        return run_capture(arguments)


def _list_baselines(arguments: Namespace) -> int:
    from esper.scripts.telemetry_compare import run_list  # see above

    with interruptible():
        return run_list(arguments)


def _diff(arguments: Namespace) -> int:
    from esper.scripts.telemetry_diff import run_diff  # see above

    with interruptible():
        return run_diff(arguments)


def _tail(arguments: Namespace) -> int:
    from esper.scripts.telemetry_tail import run_tail  # see above

    with interruptible():
        return run_tail(arguments)


def _validate(arguments: Namespace) -> int:
    from esper.scripts.telemetry_compare import run_validate  # see above

    with interruptible():
        return run_validate(arguments)


def _query(arguments: Namespace) -> int:
    from esper.scripts.telemetry_query import run_query  # see above

    return run_query(arguments)


def _export(arguments: Namespace) -> int:
    from esper.scripts.telemetry_export import run_export  # see above

    with interruptible():
        return run_export(arguments)


def _report(arguments: Namespace) -> int:
    from esper.scripts.telemetry_view import run_report  # see above

    with interruptible():
        return run_report(arguments)


def _serve(arguments: Namespace) -> int:
    from esper.scripts.telemetry_view import run_serve  # see above

    return run_serve(arguments)


def _mcp(arguments: Namespace) -> int:
    from esper.scripts.telemetry_mcp import run_mcp  # see above

    return run_mcp(arguments)


def _print_schema(_: Namespace) -> int:
    import orjson  # see above

    from esper.leyline.telemetry import events_schema  # see above

    # Keys are not sorted: the schema lists fields in the order in which log lines have them.
    print(orjson.dumps(events_schema(), option=orjson.OPT_INDENT_2).decode())
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(end_process(main()))
