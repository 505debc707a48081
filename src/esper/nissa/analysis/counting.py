"""Counting events in any JSONL whose objects have `event_type`.

Every counted line is guaranteed to be one JSON object in UTF-8 whose top-level `event_type` is a
string. To detect damaged lines, every byte is either parsed or verified against the checksums that
the journal wrote together with counts (`nissa/reading/checksummed_blocks.py`). Large uncompressed
files are split at a line end and counted in two processes. Python's NaN and Infinity tokens, which
are not JSON but common in foreign logs, are accepted.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from esper.leyline.errors import UnreadableFileError
from esper.nissa.reading.checksummed_blocks import LogPart, block_start_after, log_parts
from esper.nissa.reading.lines import (
    CHUNK_BYTES,
    STDIN,
    is_compressed,
    lines_of,
    read_chunks,
    split_lines,
)
from esper.nissa.storage.blocks import NO_ENV, BlockFacts

__all__ = [
    "FACTS_BY",
    "BadLine",
    "CountBy",
    "CountTask",
    "Tally",
    "add_up",
    "count_logs",
    "count_part",
    "merge_tallies",
]

NUM_SHOWN_BAD_LINES: Final = 5
PARALLEL_BYTES: Final = 64 << 20
"""For smaller files, starting a second process takes longer than it saves."""

_OWN_SHARE: Final = 0.53
"""Starting the other process takes time, in which this one parses some of the lines."""
_OWN_VERIFIED_SHARE: Final = 0.6
"""The same where blocks are only compared with their checksums, which is four times as fast."""
_MAX_REASON_CHARS: Final = 120


class CountBy(StrEnum):
    """The key by which events are counted."""

    TYPE = "type"
    ENV = "env"
    ROUND = "round"
    SEVERITY = "severity"
    KIND = "kind"
    """The event type, or `data.kind` for an ANALYTICS_SNAPSHOT."""


class BadLine(msgspec.Struct, frozen=True, gc=False):
    """A line that is not an event, and why."""

    line: int
    """Counts from 1."""
    reason: str


class Tally(msgspec.Struct, kw_only=True):
    """Counts of one file, or of a part of it."""

    counts: dict[str, int] = {}
    num_lines: int = 0
    num_bad: int = 0
    bad_lines: list[BadLine] = []
    """The first few."""

    @property
    def num_events(self) -> int:
        """Return the number of lines that are events."""
        return sum(self.counts.values())


class CountTask(msgspec.Struct, frozen=True, kw_only=True, tag="count"):
    """A part of a log to count, from one line boundary to another."""

    path: str
    by: CountBy = CountBy.TYPE
    start: int = 0
    end: int | None = None


class _TypeOnly(msgspec.Struct, gc=False):
    event_type: str


class _ScopeData(msgspec.Struct, gc=False):
    env_id: int | None = None


class _KindData(msgspec.Struct, gc=False):
    kind: str | None = None


class _WithEnv(msgspec.Struct, gc=False):
    event_type: str
    env_id: int | None = None
    data: _ScopeData | None = None


class _WithRound(msgspec.Struct, gc=False):
    event_type: str
    round: int | None = None


class _WithSeverity(msgspec.Struct, gc=False):
    event_type: str
    severity: str | None = None


class _WithKind(msgspec.Struct, gc=False):
    event_type: str
    data: _KindData | None = None


NONE_LABEL: Final = NO_ENV
"""Label for events that do not have the key."""

_Keys: TypeAlias = Callable[[Iterable[Any]], list[str]]


def _type_keys(heads: Iterable[_TypeOnly]) -> list[str]:
    return [head.event_type for head in heads]


def _env_keys(heads: Iterable[_WithEnv]) -> list[str]:
    # Foreign logs have the env id in the payload.
    return [
        _label(head.env_id if head.env_id is not None or head.data is None else head.data.env_id)
        for head in heads
    ]


def _round_keys(heads: Iterable[_WithRound]) -> list[str]:
    return [_label(head.round) for head in heads]


def _severity_keys(heads: Iterable[_WithSeverity]) -> list[str]:
    return [_label(head.severity) for head in heads]


def _kind_keys(heads: Iterable[_WithKind]) -> list[str]:
    return [
        head.data.kind
        if head.event_type == "ANALYTICS_SNAPSHOT" and head.data is not None and head.data.kind
        else head.event_type
        for head in heads
    ]


def _label(value: int | str | None) -> str:
    return NONE_LABEL if value is None else str(value)


_WAYS: Final[dict[CountBy, tuple[type[msgspec.Struct], _Keys]]] = {
    CountBy.TYPE: (_TypeOnly, _type_keys),
    CountBy.ENV: (_WithEnv, _env_keys),
    CountBy.ROUND: (_WithRound, _round_keys),
    CountBy.SEVERITY: (_WithSeverity, _severity_keys),
    CountBy.KIND: (_WithKind, _kind_keys),
}
FACTS_BY: Final[Mapping[CountBy, Callable[[BlockFacts], str]]] = {
    CountBy.TYPE: attrgetter("types"),
    CountBy.KIND: attrgetter("types"),
    CountBy.ENV: attrgetter("envs"),
    CountBy.SEVERITY: attrgetter("severities"),
}
"""Where a block's facts have the counts by a key; other keys need every line."""

_FIRST: Final = itemgetter(0)
_BEFORE_NEWLINE: Final = itemgetter(-2)
_PYTHON_MARKS: Final = (b"NaN", b"Infinity", rb"\ud", rb"\uD", b"\xef\xbb\xbf")
"""Any text that Python's json accepts and msgspec rejects contains one of these."""
_REFUSALS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


def count_logs(paths: Sequence[Path], by: CountBy = CountBy.TYPE) -> dict[Path, Tally]:
    """Count every log; large ones in two processes."""
    return {path: _count_log(path, by) for path in paths}


def _count_log(path: Path, by: CountBy) -> Tally:
    if path == STDIN or not path.is_file():
        return count_part(CountTask(path=str(path), by=by))
    size = path.stat().st_size
    if size < PARALLEL_BYTES or (os.cpu_count() or 1) < 2 or is_compressed(path):
        return count_part(CountTask(path=str(path), by=by))
    middle = block_start_after(path, round(size * _OWN_VERIFIED_SHARE)) or _line_end_after(
        path, round(size * _OWN_SHARE)
    )
    # Imported here because only large files need a second process.
    from esper.nissa.analysis.reading_processes import started

    later = CountTask(path=str(path), by=by, start=middle, end=size)
    with started(later, Tally) as result:
        earlier = count_part(CountTask(path=str(path), by=by, end=middle))
        return merge_tallies([earlier, result()])


def _line_end_after(path: Path, offset: int) -> int:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            while (piece := stream.readline(CHUNK_BYTES)) and not piece.endswith(b"\n"):
                pass
            return stream.tell()
    except OSError as error:
        raise UnreadableFileError(path, f"cannot be read: {error.strerror}") from None


def merge_tallies(parts: Iterable[Tally]) -> Tally:
    """Add up the tallies of consecutive parts."""
    counts: Counter[str] = Counter()
    whole = Tally()
    for part in parts:
        counts.update(part.counts)
        room = NUM_SHOWN_BAD_LINES - len(whole.bad_lines)
        whole.bad_lines += [
            BadLine(bad.line + whole.num_lines, bad.reason) for bad in part.bad_lines[:room]
        ]
        whole.num_lines += part.num_lines
        whole.num_bad += part.num_bad
    whole.counts = dict(counts)
    return whole


def count_part(task: CountTask) -> Tally:
    """Count one part of a log in this process."""
    counts: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    tally = Tally()
    facts_of = FACTS_BY.get(task.by)
    for part in log_parts(Path(task.path), task.start, task.end) if facts_of else [_whole(task)]:
        if part.facts is None or facts_of is None:
            part_task = msgspec.structs.replace(task, start=part.start, end=part.end)
            _count_parsed(part_task, counts, tally)
        else:
            pairs.update(facts_of(part.facts).split(","))
            tally.num_lines += part.num_events
    counts.update(add_up(pairs))
    tally.counts = dict(counts)
    return tally


def _whole(task: CountTask) -> LogPart:
    return LogPart(task.start, task.end, 0, None, b"")


def add_up(pairs: Mapping[str, int]) -> Counter[str]:
    """Add up counts as the checksum file has them; `pairs` says how often each occurs."""
    counts: Counter[str] = Counter()
    for pair, times in pairs.items():
        name, _, number = pair.rpartition(":")
        counts[name] += int(number) * times
    return counts


def _count_parsed(task: CountTask, counts: Counter[str], tally: Tally) -> None:
    head, keys = _WAYS[task.by]
    decoder = msgspec.json.Decoder(head)
    for chunk in read_chunks(Path(task.path), task.start, task.end):
        lines = lines_of(chunk)
        heads = None
        if _could_be_objects(lines) and _is_utf8(chunk):
            heads = _decode_heads(chunk, decoder)
        if heads is not None and len(heads) == len(lines):
            counts.update(keys(heads))
            tally.num_lines += len(lines)
        else:
            del lines  # together as large as the chunk, which may be one line of many megabytes
            _count_line_by_line(split_lines(chunk), head, keys, counts, tally)


def _decode_heads(
    chunk: bytes, decoder: msgspec.json.Decoder[msgspec.Struct]
) -> list[msgspec.Struct] | None:
    """Decode all lines at once; return None if they must be decoded one by one to find bad ones."""
    try:
        return decoder.decode_lines(chunk)
    except _REFUSALS:
        if b"NaN" not in chunk and b"Infinity" not in chunk:
            return None
    # Imported here because most logs are standard JSON.
    from esper.leyline.untyped_json import without_tokens

    try:
        return decoder.decode_lines(without_tokens(chunk))
    except _REFUSALS:
        return None


def _could_be_objects(lines: Sequence[bytes]) -> bool:
    """Check whether every line starts and ends like a JSON object.

    If the whole chunk then decodes to as many objects as it has lines, each line is one object:
    in JSON `}` is followed by `{`, across a newline or not, only between two top-level values.
    """
    try:
        starts, ends = set(map(_FIRST, lines)), set(map(_BEFORE_NEWLINE, lines))
    except IndexError:  # a blank line
        return False
    return (starts, ends) == ({ord("{")}, {ord("}")}) and lines[-1].endswith(b"\n")


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _count_line_by_line(
    lines: Sequence[bytes],
    head: type[msgspec.Struct],
    keys: _Keys,
    counts: Counter[str],
    tally: Tally,
) -> None:
    for line in lines:
        tally.num_lines += 1
        text = line.strip()
        if not text:
            continue
        try:
            counts.update(keys([_read_head(text, head)]))
        except _REFUSALS as error:
            tally.num_bad += 1
            if len(tally.bad_lines) < NUM_SHOWN_BAD_LINES:
                reason = _reason(error)
                tally.bad_lines.append(BadLine(tally.num_lines, reason))


def _read_head(line: bytes, head: type[msgspec.Struct]) -> msgspec.Struct:
    line.decode()  # msgspec does not check the UTF-8 of fields that the head does not have
    try:
        return msgspec.json.decode(line, type=head)
    except msgspec.DecodeError as error:
        # Decoding generically takes more memory, so skip it where it cannot succeed.
        if not _is_odd_scope(error) and not any(mark in line for mark in _PYTHON_MARKS):
            raise
        # Imported here because most logs do not need the lenient reader.
        from esper.nissa.reading.foreign import foreign_event

        event = foreign_event(line)
        if event is None:
            raise
        return _lenient_head(event, head)


def _is_odd_scope(error: msgspec.DecodeError) -> bool:
    """Check whether a field other than the event type has an unexpected JSON type."""
    return isinstance(error, msgspec.ValidationError) and "event_type" not in str(error)


def _lenient_head(value: dict[str, object], head: type[msgspec.Struct]) -> msgspec.Struct:
    """Convert the fields that have the expected type; treat the others as absent."""
    kept: dict[str, object] = {"event_type": value["event_type"]}
    for field in msgspec.structs.fields(head)[1:]:
        try:
            kept[field.name] = msgspec.convert(value.get(field.name), field.type)
        except msgspec.ValidationError:
            kept[field.name] = None
    return head(**kept)


def _reason(error: BaseException) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error)[:_MAX_REASON_CHARS]
