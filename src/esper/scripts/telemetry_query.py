"""`esper-telemetry query`."""

import csv
import sys
from argparse import Namespace

from esper.leyline.errors import ExitCode, UsageError
from esper.leyline.untyped_json import compact_json
from esper.nissa.reading.query import QueryResult, query_logs
from esper.nissa.reading.run_lookup import find_logs
from esper.nissa.reading.sql_views import VIEWS
from esper.scripts.terminal import print_table, text_for_output

__all__ = ["run_query"]


def run_query(arguments: Namespace) -> int:
    """Run one SQL statement, or list the views."""
    if arguments.views:
        print_table(["view", "question"], [[view.name, view.question] for view in VIEWS.values()])
        return ExitCode.OK
    if arguments.run is None or not arguments.sql:
        raise UsageError('query needs a run and a statement: query RUN "SELECT … FROM epochs"')
    if len(arguments.sql) > 1:
        raise UsageError('put the statement in quotes: query RUN "SELECT … FROM epochs"')
    result = query_logs(find_logs([arguments.run]), arguments.sql[0])
    _PRINTERS[arguments.format](result)
    return ExitCode.OK


def _print_as_table(result: QueryResult) -> None:
    rows = [["-" if value is None else str(value) for value in row] for row in result.rows]
    print_table(result.columns, rows)


def _print_as_json(result: QueryResult) -> None:
    for row in result.rows:
        text = compact_json(dict(zip(result.columns, row, strict=True))).decode()
        print(text_for_output(text))


def _print_as_csv(result: QueryResult) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in (result.columns, *result.rows):
        writer.writerow(text_for_output(it) if isinstance(it, str) else it for it in row)


_PRINTERS = {"table": _print_as_table, "json": _print_as_json, "csv": _print_as_csv}
