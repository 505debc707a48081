"""SQL over runs: events are loaded into DuckDB, which then reads no other data."""

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from esper.leyline.errors import UsageError
from esper.leyline.extras import require_packages
from esper.nissa.reading.lines import is_compressed
from esper.nissa.reading.run_columns import read_run_configs
from esper.nissa.reading.sql_views import VIEWS, view_sql

if TYPE_CHECKING:
    import duckdb

__all__ = ["Page", "QueryResult", "export_views", "query_logs"]

_COLUMNS: Final = {
    "event_type": "VARCHAR",
    "seq": "BIGINT",
    "ts": "DOUBLE",
    "run_id": "VARCHAR",
    "group": "VARCHAR",
    "round": "BIGINT",
    "step": "BIGINT",
    "env_id": "BIGINT",
    "episode_id": "BIGINT",
    "severity": "VARCHAR",
    "data": "JSON",
}
_HINTS: Final = ("Candidate", "Did you mean")
"""How the lines of DuckDB's messages begin that name what could have been meant."""
_MAX_OBJECT_BYTES: Final = 16 << 20
SKIPPED_ROWS: Final = 1000
"""Rows before a page are fetched in pieces, so that they do not fill memory."""


class QueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The columns and rows that a statement returned."""

    columns: list[str]
    rows: list[tuple[object, ...]]


class Page(NamedTuple):
    """Which rows of a result are wanted, and how long the statement may take."""

    limit: int
    offset: int
    deadline_s: float


def query_logs(logs: Sequence[Path], sql: str, page: Page | None = None) -> QueryResult:
    """Run one statement over the events of these logs.

    Args:
        logs: the logs of any number of runs.
        sql: the statement.
        page: returns one row more than its limit if there are more; None returns all rows.
    """
    with _loaded(logs, "query") as connection:
        # The statement may read the loaded data only: no files, no network, no extensions.
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        if page is None:
            return _executed(connection, sql, None)
        # A statement of an agent may never end.
        timer = threading.Timer(page.deadline_s, connection.interrupt)
        timer.start()
        try:
            return _executed(connection, sql, page)
        finally:
            timer.cancel()


def _executed(connection: "duckdb.DuckDBPyConnection", sql: str, page: Page | None) -> QueryResult:
    try:
        sql.encode()  # DuckDB's own error has no message
    except UnicodeEncodeError:
        raise UsageError("query: the statement is not UTF-8 text") from None
    # Contrary to its type annotation, execute() returns None for an empty statement.
    cursor: duckdb.DuckDBPyConnection | None = connection.execute(sql)
    if cursor is None:
        raise UsageError("query: the statement is empty; --views lists the available views")
    columns = [column[0] for column in cursor.description or ()]
    if page is None:
        return QueryResult(columns=columns, rows=cursor.fetchall())
    for _ in range(page.offset // SKIPPED_ROWS):
        cursor.fetchmany(SKIPPED_ROWS)
    cursor.fetchmany(page.offset % SKIPPED_ROWS)
    return QueryResult(columns=columns, rows=cursor.fetchmany(page.limit + 1))


def export_views(logs: Sequence[Path], directory: Path, form: str) -> None:
    """Write each view of these logs to `NAME.form` in a directory; `form` is parquet or csv."""
    with _loaded(logs, f"--to {form}") as connection:
        for name in VIEWS:
            path = str(directory / f"{name}.{form}").replace("'", "''")
            connection.execute(f"COPY (SELECT * FROM \"{name}\") TO '{path}' (FORMAT {form})")


@contextmanager
def _loaded(logs: Sequence[Path], feature: str) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Yield a database that has the events and the views; its errors become one sentence."""
    require_packages(feature, "duckdb")
    # Imported here because DuckDB is an optional dependency.
    import duckdb

    with duckdb.connect(":memory:") as connection:
        try:
            _load(connection, logs)
            yield connection
        except duckdb.Error as error:
            raise UsageError(f"query: {_one_sentence(error)}") from None


def _load(connection: "duckdb.DuckDBPyConnection", logs: Sequence[Path]) -> None:
    """Load the events into a table and create the views."""
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in _COLUMNS.items())
    connection.execute(
        f"CREATE TABLE lines AS SELECT * FROM read_json($files, format = 'newline_delimited', "
        f"columns = {{{columns}}}, maximum_object_size = {_MAX_OBJECT_BYTES}, "
        f"ignore_errors = true, compression = $compression)",
        {"files": [_as_pattern(log) for log in logs], "compression": _compression(logs)},
    )
    connection.execute("CREATE TABLE run_configs (run_id VARCHAR, config JSON)")
    configs = read_run_configs(logs)
    if configs:  # executemany refuses none
        connection.executemany("INSERT INTO run_configs VALUES (?, ?)", configs)
    for view in VIEWS.values():
        connection.execute(view_sql(view))


def _as_pattern(log: Path) -> str:
    """Return the pattern that fits this path alone, as DuckDB takes paths for patterns."""
    return re.sub(r"[*?\[]", r"[\g<0>]", str(log))


def _compression(logs: Sequence[Path]) -> str:
    """Return the compression of all logs; DuckDB's own detection uses only the file name."""
    kinds = {log.suffix.removeprefix(".") if is_compressed(log) else "uncompressed" for log in logs}
    if len(kinds) > 1:
        raise UsageError("query: all logs must be compressed in the same way")
    kind = kinds.pop()
    return {"gz": "gzip", "zst": "zstd"}.get(kind, "uncompressed")


def _one_sentence(error: Exception) -> str:
    """Return DuckDB's message on one line: what is wrong and what it suggests, without the SQL."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    hints = [line for line in lines[1:] if line.startswith(_HINTS)]
    return " ".join([lines[0], *hints]) if lines else type(error).__name__
