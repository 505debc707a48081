"""What agents ask and get: the arguments and answers of the tools, which give the schemas."""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from esper.karn.view.run_list import RunRow
from esper.leyline.payloads import TrainingStarted
from esper.nissa.analysis.counting import CountBy
from esper.nissa.analysis.diff import Difference
from esper.nissa.analysis.validation import ChecksumState

__all__ = [
    "AlarmFacts",
    "ComparePolicies",
    "CountEvents",
    "DescribeRun",
    "DiffRuns",
    "EventCounts",
    "FindEvents",
    "FoundEvents",
    "GroupFacts",
    "Interval",
    "ListRuns",
    "MetricDifference",
    "PolicyComparison",
    "Query",
    "QueryAnswer",
    "RunDescription",
    "RunDifference",
    "RunTable",
    "Source",
]

MAX_LIMIT = 500

RunName: TypeAlias = Annotated[
    str, Meta(description="id, beginning of an id, name or directory of a run, or `latest`")
]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="rows of a page")]
Offset: TypeAlias = Annotated[int, Meta(ge=0, description="rows before the page")]


class _Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Source(_Answer, frozen=True, kw_only=True):
    """The log behind an answer."""

    run: str
    """Its directory's name."""
    run_id: str | None
    first_seq: int | None
    """Sequence numbers of the first and last event that the log had."""
    last_seq: int | None
    checksums: ChecksumState


class ListRuns(_Question, frozen=True, kw_only=True):
    """Which runs there are, newest first."""

    state: Annotated[
        str | None,
        Meta(description="running, completed, interrupted, failed, killed or empty"),
    ] = None
    task: str | None = None
    limit: Limit = 50
    offset: Offset = 0


class RunTable(_Answer, frozen=True, kw_only=True):
    """A page of the list of runs."""

    directory: str
    num_runs: int
    """Of all pages."""
    runs: list[RunRow]
    next_offset: int | None


class DescribeRun(_Question, frozen=True, kw_only=True):
    """What a run is and how it goes: facts, verdict with its reasons, alarms."""

    run: RunName


class AlarmFacts(_Answer, frozen=True, kw_only=True):
    """An alarm and how often it occurred."""

    event_type: str
    severity: str
    text: str
    """Of the latest occurrence."""
    count: int
    env_id: int | None
    round: int | None
    """Counted from 0, as in the log."""
    step: int | None
    seq: int


class RunDescription(_Answer, frozen=True, kw_only=True):
    """What a run is and how it goes."""

    source: Source
    row: RunRow
    started: TrainingStarted | None
    """None for a log that has no event yet."""
    headline: str
    learning: str
    attention: str
    reasons: list[str]
    alarms: list[AlarmFacts]
    """Newest first."""
    num_alarms: int
    """Rows of alarms, of which `alarms` has the first."""


class Query(_Question, frozen=True, kw_only=True):
    """SQL (DuckDB) over the views of runs; `SELECT view_name FROM duckdb_views()` lists them."""

    sql: str
    run: Annotated[str | None, Meta(description="as elsewhere; null queries all runs")] = None
    limit: Limit = 100
    offset: Offset = 0


class QueryAnswer(_Answer, frozen=True, kw_only=True):
    """A page of the rows that a statement returned."""

    sources: list[Source]
    columns: list[str]
    rows: list[list[str | int | float | bool | None]]
    """What JSON has no form for is text; long texts are cut off."""
    next_offset: int | None


class CountEvents(_Question, frozen=True, kw_only=True):
    """How many events there are of each type, env, round or severity."""

    run: RunName
    by: CountBy = CountBy.TYPE


class EventCounts(_Answer, frozen=True, kw_only=True):
    """Counts of events."""

    source: Source
    num_events: int
    num_bad_lines: int
    counts: dict[str, int]
    num_keys: int
    """Of which `counts` has the most frequent."""


class DiffRuns(_Question, frozen=True, kw_only=True):
    """In what two runs differ: configuration, results, counts, first event."""

    left: RunName
    right: RunName


class RunDifference(_Answer, frozen=True, kw_only=True):
    """In what two runs differ; of the counts, only those that do."""

    sources: list[Source]
    difference: Difference


class FindEvents(_Question, frozen=True, kw_only=True):
    """Events of a run, in the order of its log."""

    run: RunName
    types: Annotated[list[str], Meta(description="event types; none selects all")] = []
    min_severity: Annotated[
        str | None, Meta(description="debug, info, warning, error or critical")
    ] = None
    env_id: int | None = None
    round: Annotated[int | None, Meta(description="counted from 0")] = None
    text: Annotated[str | None, Meta(description="part of the event's line")] = None
    since: Annotated[int, Meta(ge=0, description="first sequence number")] = 0
    limit: Limit = 50


class FoundEvents(_Answer, frozen=True, kw_only=True):
    """Events as they are in the log."""

    source: Source
    events: list[msgspec.Raw]
    next_since: int | None
    """`since` of the next page; null if there are no more."""


class ComparePolicies(_Question, frozen=True, kw_only=True):
    """Whether runs of one kind end better than those of another, over their last rounds."""

    groups: Annotated[
        dict[str, list[str]],
        Meta(min_length=1, max_length=10, description="name of a group: its runs, as elsewhere"),
    ]
    rounds: Annotated[int, Meta(ge=1, le=1000, description="last rounds of a run to average")] = 10


class Interval(_Answer, frozen=True, kw_only=True):
    """A mean over runs with its 95% bootstrap interval, which means little for a few runs."""

    mean: float
    low: float
    high: float


class GroupFacts(_Answer, frozen=True, kw_only=True):
    """What the runs of a group reached."""

    name: str
    num_runs: int
    accuracy_pct: Interval | None
    """None where no run has a finished round."""
    task_return: Interval | None


class MetricDifference(_Answer, frozen=True, kw_only=True):
    """The first group minus another; positive is better."""

    first: str
    second: str
    accuracy_pp: Interval | None
    task_return: Interval | None


class PolicyComparison(_Answer, frozen=True, kw_only=True):
    """Groups of runs beside each other."""

    sources: list[Source]
    groups: list[GroupFacts]
    differences: list[MetricDifference]
    caution: str | None
    """Why the comparison may say little."""
