"""Validating a run's log: checksums, sequence, schema, order rules and equations."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from esper.leyline.baselines import RunProfile
from esper.leyline.errors import EventDecodeError, UnreadableFileError
from esper.leyline.printable import printable
from esper.leyline.telemetry import (
    EVENT_SPECS,
    SCHEMA_VERSION,
    Channel,
    EventType,
    decode_event,
)
from esper.nissa.analysis.identities import check_profile
from esper.nissa.analysis.run_profile import ScanTask, scan_log
from esper.nissa.reading.foreign import foreign_event
from esper.nissa.reading.lines import is_compressed, read_chunks, split_lines
from esper.nissa.reading.run_lookup import find_log, run_directory_of
from esper.nissa.storage.block_facts import parse_facts
from esper.nissa.storage.blocks import (
    MAX_RECORD_BYTES,
    Block,
    CommitRecord,
    checksum_path,
    parse_commit_record,
)

__all__ = [
    "ChecksumState",
    "Finding",
    "Validation",
    "check_checksums",
    "validate_log",
    "validate_run",
]

MAX_SHOWN_PER_KIND: Final = 5
OPERATIONAL_NAME: Final = "operational.jsonl"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem found in a run."""

    file: str
    line: int | None
    kind: str
    """`crc`, `seq`, `torn`, `schema`, `type`, `channel`, `unfinished`, `order` or `equation`."""
    message: str


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of validating a run."""

    num_events: int
    num_blocks: int
    """CRC blocks that match."""
    num_uncovered_bytes: int
    """Bytes at the end that no CRC block covers."""
    num_findings: dict[str, int]
    findings: list[Finding]
    """The first few of each kind."""

    @property
    def is_valid(self) -> bool:
        """Check whether no problem was found."""
        return not self.num_findings


class ChecksumState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the bytes of a log are those that the run wrote."""

    state: str
    """`verified`, `damaged`, or `none` for a log without checksums."""
    num_blocks: int
    """Blocks that match their checksum."""
    num_uncovered_bytes: int
    """Bytes at the end that no checksum covers yet."""
    problems: list[str]


@dataclass(eq=False, slots=True)
class _Findings:
    """Collects findings: counts all, stores the first few of each kind."""

    counts: dict[str, int] = field(default_factory=dict)
    shown: list[Finding] = field(default_factory=list)

    def add(self, path: Path, line: int | None, kind: str, message: str) -> None:
        number = self.counts[kind] = self.counts.get(kind, 0) + 1
        if number <= MAX_SHOWN_PER_KIND:
            self.shown.append(Finding(file=path.name, line=line, kind=kind, message=message))


def validate_run(path: Path) -> Validation:
    """Validate a run directory or a standalone log file."""
    return validate_log(find_log(path))


def validate_log(log: Path) -> Validation:
    """Validate a log, its checksum file and the operational log next to it."""
    profile = scan_log(ScanTask(path=str(log), with_keys=False)).profile
    _check_version(log, profile)
    findings = _Findings()
    blocks = _BlockCheck(0, 0)
    crc_path = checksum_path(log)
    directory = run_directory_of(log)
    if directory is not None and not is_compressed(log):
        blocks = _check_blocks(log, crc_path, findings)
    num_events = _check_lines(log, Channel.RUN, findings)
    _check_whole(log, profile, findings)
    if directory is not None and (directory / OPERATIONAL_NAME).is_file():
        _check_lines(directory / OPERATIONAL_NAME, Channel.OPERATIONAL, findings)
    return Validation(
        num_events=num_events,
        num_blocks=blocks.num_blocks,
        num_uncovered_bytes=blocks.num_uncovered_bytes,
        num_findings=findings.counts,
        findings=findings.shown,
    )


def check_checksums(log: Path) -> ChecksumState:
    """Compare a log with its checksums, and nothing else."""
    if run_directory_of(log) is None or is_compressed(log):
        return ChecksumState(state="none", num_blocks=0, num_uncovered_bytes=0, problems=[])
    findings = _Findings()
    blocks = _check_blocks(log, checksum_path(log), findings)
    return ChecksumState(
        state="damaged" if findings.counts else "verified",
        num_blocks=blocks.num_blocks,
        num_uncovered_bytes=blocks.num_uncovered_bytes,
        problems=[finding.message for finding in findings.shown],
    )


class _BlockCheck(NamedTuple):
    num_blocks: int
    num_uncovered_bytes: int


def _check_blocks(log: Path, crc_path: Path, findings: _Findings) -> _BlockCheck:
    """Verify every CRC block against the log; blocks must be contiguous from offset 0."""
    size = log.stat().st_size
    if not crc_path.is_file():
        if size:
            findings.add(crc_path, None, "crc", "is missing, so the log's bytes cannot be verified")
        return _BlockCheck(0, size)
    num_matching = expected_start = expected_seq = 0
    with log.open("rb") as stream:
        for number, block in _read_blocks(crc_path, findings):
            if block.start != expected_start or block.first_seq != expected_seq:
                message = f"block at offset {block.start} does not follow offset {expected_start}"
                findings.add(crc_path, number, "crc", message)
                break
            if not block.matches(stream):
                message = f"bytes {block.start} to {block.end} of {log.name} do not match"
                findings.add(crc_path, number, "crc", message)
            elif not _is_described(stream, block):
                message = f"says other than what bytes {block.start} to {block.end} contain"
                findings.add(crc_path, number, "crc", message)
            else:
                num_matching += 1
            expected_start, expected_seq = block.end, block.last_seq + 1
    if expected_start > size:
        findings.add(log, None, "crc", f"ends at {size}, but {expected_start} bytes were written")
    return _BlockCheck(num_matching, max(size - expected_start, 0))


def _is_described(stream: BinaryIO, record: CommitRecord) -> bool:
    """Compare what the checksum file says about an intact block with its lines."""
    if record.facts is None:
        return True
    stream.seek(record.start)
    data = stream.read(record.end - record.start)
    return parse_facts(Block(record.first_seq, record.num_events, data)) == record.facts


def _read_blocks(crc_path: Path, findings: _Findings) -> Iterator[tuple[int, CommitRecord]]:
    """Yield the rows; an incomplete last row without a newline is ignored."""
    for number, row in enumerate(_read_rows(crc_path), 1):
        # Only the canonical spelling is accepted, so any changed character is reported.
        block = parse_commit_record(row)
        if block is None:
            findings.add(crc_path, number, "crc", "is not a row that the writer wrote")
            return
        if not block.start < block.end or block.last_seq < block.first_seq:
            findings.add(crc_path, number, "crc", "describes an empty block")
            return
        yield number, block


def _read_rows(crc_path: Path) -> Iterator[bytes]:
    with crc_path.open("rb") as stream:
        while row := stream.readline(MAX_RECORD_BYTES):
            if not row.endswith(b"\n") and len(row) < MAX_RECORD_BYTES:
                return
            yield row.removesuffix(b"\n")


def _check_lines(path: Path, channel: Channel, findings: _Findings) -> int:
    """Decode every line strictly and check the sequence; return the number of events."""
    expected_seq = num_lines = num_events = 0
    for chunk in read_chunks(path):
        lines = split_lines(chunk)
        for number, line in enumerate(lines, num_lines + 1):
            try:
                event = decode_event(line)
            except EventDecodeError as error:
                is_torn = line is lines[-1] and not chunk.endswith(b"\n")
                _add_bad_line(findings, path, number, line, error.reason, is_torn=is_torn)
                continue
            num_events += 1
            if event.seq != expected_seq:
                what = "is missing" if event.seq > expected_seq else "was expected"
                message = f"seq {event.seq} found here, {expected_seq} {what}"
                findings.add(path, number, "seq", message)
            expected_seq = event.seq + 1
            if EVENT_SPECS[event.event_type].channel is not channel:
                findings.add(path, number, "channel", f"{event.event_type} is in the wrong log")
        num_lines += len(lines)
    return num_events


def _add_bad_line(
    findings: _Findings, path: Path, number: int, line: bytes, reason: str, *, is_torn: bool
) -> None:
    if is_torn:
        findings.add(path, number, "torn", "the last line is incomplete; resuming removes it")
        return
    event = foreign_event(line)
    event_type: str | None = None if event is None else event["event_type"]
    if event_type is not None and event_type not in EventType.__members__:
        findings.add(path, number, "type", f"event type {event_type[:80]!r} is not known")
    else:
        findings.add(path, number, "schema", reason[:200])


def _check_version(log: Path, profile: RunProfile) -> None:
    """Raise for a log of another schema: its events would all seem wrong."""
    started = profile.started
    if started is not None and started.schema_version != SCHEMA_VERSION:
        raise UnreadableFileError(
            log,
            f"was written in schema version {started.schema_version} (Esper "
            f"{printable(started.esper_version)}), and this release validates version "
            f"{SCHEMA_VERSION}; count, tail, query, report, serve and diff read it, and that "
            "release validates it",
        )


def _check_whole(log: Path, profile: RunProfile, findings: _Findings) -> None:
    """Check the properties of the log as a whole: its end, order rules and equations."""
    if profile.status is None:
        message = "RUN_FINISHED is missing: the run is still going, or it was killed"
        findings.add(log, None, "unfinished", message)
    for rule, line in profile.broken_orders.items():
        findings.add(log, line, "order", f"breaks the rule: {rule}")
    for check in check_profile(profile):
        if not check.holds:
            message = f"{check.name} does not hold: {check.left} and {check.right}"
            findings.add(log, None, "equation", message)
