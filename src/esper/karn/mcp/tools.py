"""The tools: each answers a question from the runs of one directory, and changes nothing."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from esper.karn.mcp.comparison import compare_groups
from esper.karn.mcp.messages import (
    AlarmFacts,
    ComparePolicies,
    CountEvents,
    DescribeRun,
    DiffRuns,
    EventCounts,
    FindEvents,
    FoundEvents,
    ListRuns,
    PolicyComparison,
    Query,
    QueryAnswer,
    RunDescription,
    RunDifference,
    RunTable,
    Source,
)
from esper.karn.view.run_list import list_runs
from esper.karn.view.view_feed import read_run
from esper.leyline.errors import EventDecodeError, UnknownNameError, UsageError, shown
from esper.leyline.telemetry import Event, EventType, Severity, decode_event
from esper.nissa.analysis.counting import count_logs
from esper.nissa.analysis.diff import diff_paths
from esper.nissa.analysis.validation import check_checksums
from esper.nissa.reading.lines import read_lines
from esper.nissa.reading.log_ends import read_ends
from esper.nissa.reading.query import Page, query_logs
from esper.nissa.reading.run_lookup import find_log, find_run, run_directories
from esper.nissa.reading.tailing import LineFilter

__all__ = ["RunTools"]

T = TypeVar("T")

MAX_ANSWER_BYTES: Final = 60_000
"""Of the rows of an answer, about what an agent can read at once."""
MAX_CELL_CHARS: Final = 2_000
MAX_ALARMS: Final = 30
MAX_COUNTS: Final = 200
QUERY_DEADLINE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class RunTools:
    """The tools over one directory of runs."""

    directory: Path

    def list_runs(self, question: ListRuns) -> RunTable:
        """List runs."""
        rows = [
            row
            for row in list_runs(self.directory, time.time())
            if question.state in (None, row.state) and question.task in (None, row.task)
        ]
        start = question.offset
        page = _fitting(rows[start : start + question.limit])
        end = start + len(page)
        return RunTable(
            directory=str(self.directory),
            num_runs=len(rows),
            runs=page,
            next_offset=end if end < len(rows) else None,
        )

    def describe_run(self, question: DescribeRun) -> RunDescription:
        """Describe a run."""
        run = self._run(question.run)
        view = read_run(run).snapshot(time.time())
        rows = {Path(row.directory): row for row in list_runs(self.directory, time.time())}
        return RunDescription(
            source=_source(run),
            row=rows[run],
            started=None if view.run is None else view.run.facts,
            headline=view.verdict.headline,
            learning=view.verdict.learning,
            attention=view.verdict.attention,
            reasons=[reason.text for reason in view.verdict.reasons],
            alarms=[
                AlarmFacts(**{name: getattr(alarm, name) for name in AlarmFacts.__struct_fields__})
                for alarm in view.alarms[:MAX_ALARMS]
            ],
            num_alarms=len(view.alarms),
        )

    def query(self, question: Query) -> QueryAnswer:
        """Run a statement over a run, or over all runs."""
        runs = (
            run_directories(self.directory) if question.run is None else [self._run(question.run)]
        )
        page = Page(question.limit, question.offset, QUERY_DEADLINE_S)
        result = query_logs([find_log(run) for run in runs], question.sql, page)
        cells = [[_cell(value) for value in row] for row in result.rows[: question.limit]]
        rows = _fitting(cells)
        has_more = len(rows) < len(result.rows)
        return QueryAnswer(
            sources=[_source(run) for run in runs],
            columns=result.columns,
            rows=rows,
            next_offset=question.offset + len(rows) if has_more else None,
        )

    def count_events(self, question: CountEvents) -> EventCounts:
        """Count the events of a run."""
        run = self._run(question.run)
        log = find_log(run)
        tally = count_logs([log], question.by)[log]
        frequent = sorted(tally.counts.items(), key=lambda item: -item[1])
        return EventCounts(
            source=_source(run),
            num_events=tally.num_events,
            num_bad_lines=tally.num_bad,
            counts=dict(frequent[:MAX_COUNTS]),
            num_keys=len(frequent),
        )

    def diff_runs(self, question: DiffRuns) -> RunDifference:
        """Compare two runs."""
        runs = [self._run(question.left), self._run(question.right)]
        difference = diff_paths(*runs)
        changed = [change for change in difference.counts if change.delta]
        return RunDifference(
            sources=[_source(run) for run in runs],
            difference=msgspec.structs.replace(difference, counts=changed),
        )

    def find_events(self, question: FindEvents) -> FoundEvents:
        """Find events of a run."""
        run = self._run(question.run)
        lines = list(_limited(_matching(find_log(run), question), question.limit + 1))
        page = _fitting([msgspec.Raw(line) for line, _ in lines[: question.limit]])
        next_since = lines[len(page)][1] if len(page) < len(lines) else None
        return FoundEvents(source=_source(run), events=page, next_since=next_since)

    def compare_policies(self, question: ComparePolicies) -> PolicyComparison:
        """Compare groups of runs."""
        groups = {name: [self._run(run) for run in runs] for name, runs in question.groups.items()}
        return compare_groups(
            groups,
            num_rounds=question.rounds,
            sources=[_source(run) for runs in groups.values() for run in runs],
        )

    def _run(self, name: str) -> Path:
        """Return the directory of a run; what lies outside of this directory is no run of it."""
        run = find_run(self.directory / name, self.directory)
        if run.parent.resolve() != self.directory.resolve():
            raise UsageError(f"{shown(name)}: not a run of {self.directory}")
        return run


def _source(run: Path) -> Source:
    log = find_log(run)
    events = [event for line in read_ends(log, 0) if (event := _event(line)) is not None]
    return Source(
        run=run.name,
        run_id=events[0].run_id if events else None,
        first_seq=events[0].seq if events else None,
        last_seq=events[-1].seq if events else None,
        checksums=check_checksums(log),
    )


def _event(line: bytes) -> Event | None:
    try:
        return decode_event(line)
    except EventDecodeError:
        return None  # `validate` reports damage


def _fitting(items: Sequence[T]) -> list[T]:
    """Return the first of these, as many as an answer holds; at least one."""
    kept: list[T] = []
    num_bytes = 0
    for item in items:
        num_bytes += len(msgspec.json.encode(item))
        if kept and num_bytes > MAX_ANSWER_BYTES:
            break
        kept.append(item)
    return kept


def _cell(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    return text if len(text) <= MAX_CELL_CHARS else f"{text[:MAX_CELL_CHARS]}…"


def _limited(items: Iterator[T], limit: int) -> Iterator[T]:
    for _, item in zip(range(limit), items, strict=False):
        yield item


def _matching(log: Path, question: FindEvents) -> Iterator[tuple[bytes, int]]:
    """Yield the lines that match, each with its sequence number."""
    for name in question.types:
        if name not in EventType.__members__:
            raise UnknownNameError("event type", name, EventType.__members__)
    if question.min_severity not in (None, *Severity):
        raise UnknownNameError("severity", question.min_severity, Severity)
    accepts = LineFilter(types=frozenset(question.types) or None, since=question.since).accepts
    rank = Severity(question.min_severity or Severity.DEBUG).rank
    text = (question.text or "").encode()
    for line in read_lines(log):
        if text not in line or not accepts(line) or (event := _event(line)) is None:
            continue
        if (
            event.severity.rank >= rank
            and question.env_id in (None, event.env_id)
            and question.round in (None, event.round)
        ):
            yield line, event.seq
