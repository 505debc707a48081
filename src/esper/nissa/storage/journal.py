"""Journals: the append-only logs of a run with checksums, crash recovery and truncation."""

import contextlib
import os
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from esper.leyline.errors import TelemetryLostError, UnreadableFileError, UsageError
from esper.nissa.storage.block_facts import parse_facts
from esper.nissa.storage.blocks import Block, BlockFacts, CommitRecord, checksum_path
from esper.nissa.storage.files import FileSystem, require_own_file, write_atomically
from esper.nissa.storage.log_recovery import (
    LogRecovery,
    recover_log,
    recover_plain_log,
    verify_records,
)

__all__ = [
    "EVENTS_FILE",
    "OPERATIONAL_FILE",
    "Journal",
    "LogClaim",
    "LogCut",
    "Recovery",
    "apply_cut",
    "claim_run",
    "open_journal",
    "plan_cut",
]

EVENTS_FILE: Final = "events.jsonl"
OPERATIONAL_FILE: Final = "operational.jsonl"
INDEX_STRIDE_BYTES: Final = 64 * 1024
"""Minimum distance between two entries of the seq index: 16,000 entries for 1 GB."""
_EXISTING: Final = os.O_RDWR | os.O_APPEND
_APPEND: Final = _EXISTING | os.O_CREAT


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What was repaired when a log was opened."""

    num_bytes_cut: int
    """Length of the incomplete end that was cut off."""
    num_events_covered: int
    """Complete events that had no checksum yet and received one."""


class _IndexEntry(msgspec.Struct, frozen=True, gc=False):
    seq: int
    offset: int


@dataclass(eq=False, slots=True)
class Journal:
    """One open log. A single thread appends; any thread may read the public fields."""

    path: Path
    files: FileSystem
    descriptor: int
    checksum_descriptor: int | None
    recovery: Recovery
    num_bytes: int
    """Size of the committed part; bytes after it must not be read."""
    next_seq: int
    checksum_bytes: int
    is_dirty: bool
    """Whether anything was written since the last fsync."""
    _index: list[_IndexEntry] = field(default_factory=lambda: [_IndexEntry(0, 0)])

    @property
    def last_seq(self) -> int | None:
        """Return the seq of the last committed event; None if there is none yet."""
        return self.next_seq - 1 if self.next_seq else None

    def append(self, block: Block, facts: BlockFacts | None = None) -> None:
        """Write a block, then its checksum; if either write fails, truncate both files back.

        Args:
            block: the next events.
            facts: what is in them, for the checksum file; None if that is unknown.
        """
        assert block.first_seq == self.next_seq, "blocks of a journal are contiguous"
        self.check_untouched()
        record = CommitRecord.of(block, self.num_bytes, facts)
        line = record.line()
        self.is_dirty = True
        try:
            # The log before its checksum: after a crash between the two, recovery finds whole lines
            # without a record, and gives them one. The other way round it would find a record of
            # bytes that are not there.
            self.files.write(self.descriptor, block.data)
            if self.checksum_descriptor is not None:
                self.files.write(self.checksum_descriptor, line)
        except OSError:
            self._take_back()
            raise
        self.note_indexed(record)
        self.checksum_bytes += len(line)
        # Published last: readers on other threads trust bytes up to these positions.
        self.next_seq = block.next_seq
        self.num_bytes = record.end

    def check_untouched(self) -> None:
        """Raise TelemetryLostError if anything but this journal has changed one of its files."""
        self._check_file(self.path, self.descriptor, self.num_bytes)
        if self.checksum_descriptor is not None:
            path = checksum_path(self.path)
            self._check_file(path, self.checksum_descriptor, self.checksum_bytes)

    def _check_file(self, path: Path, descriptor: int, num_bytes: int) -> None:
        # By descriptor and by name: a file that was moved away still takes every write.
        here, there = self.files.status(descriptor), self.files.status_at(path)
        if there is None or not os.path.samestat(here, there):
            what = "removed" if there is None else "replaced by another file"
            reason = f"was {what} while the run was writing it"
        elif here.st_size != num_bytes:
            reason = f"was changed by another process: {here.st_size} bytes instead of {num_bytes}"
        else:
            return
        raise TelemetryLostError(path, None, reason, self.last_seq)

    def _take_back(self) -> None:
        # If truncation fails as well, recovery removes the incomplete tail at the next opening.
        with contextlib.suppress(OSError):
            self.files.truncate(self.descriptor, self.num_bytes)
            if self.checksum_descriptor is not None:
                self.files.truncate(self.checksum_descriptor, self.checksum_bytes)

    def note_indexed(self, record: CommitRecord) -> None:
        """Add a block to the seq index if it is far enough from the previous entry."""
        if record.start - self._index[-1].offset >= INDEX_STRIDE_BYTES:
            self._index.append(_IndexEntry(record.first_seq, record.start))

    def offset_before(self, seq: int) -> tuple[int, int]:
        """Return the seq and offset of the nearest index entry at or before an event."""
        place = self._index[max(bisect_right(self._index, seq, key=_seq_of_entry) - 1, 0)]
        return place.seq, place.offset

    def sync(self) -> None:
        """Fsync everything committed since the last sync."""
        if self.is_dirty:
            # The log first, for the same reason as in `append`.
            self.files.fsync(self.descriptor)
            if self.checksum_descriptor is not None:
                self.files.fsync(self.checksum_descriptor)
            self.is_dirty = False

    def close(self) -> None:
        """Close the files; the log itself last, as that ends its lock."""
        try:
            if self.checksum_descriptor is not None:
                self.files.close(self.checksum_descriptor)
        finally:
            self.files.close(self.descriptor)


def _seq_of_entry(entry: _IndexEntry) -> int:
    return entry.seq


@dataclass(eq=False, slots=True)
class LogClaim:
    """The lock on a run's log: its holder alone may change the run's directory.

    A resume holds it from before its first change until the hub takes the log over.
    """

    path: Path
    files: FileSystem
    _descriptor: int | None

    def hand_over(self) -> int:
        """Return the locked descriptor to its new owner."""
        descriptor, self._descriptor = self._descriptor, None
        assert descriptor is not None, "a claim is handed over once"
        return descriptor

    @property
    def descriptor(self) -> int:
        """Return the locked descriptor."""
        assert self._descriptor is not None, "the claim was handed over"
        return self._descriptor

    def close(self) -> None:
        """Give the lock up, unless it was handed over."""
        if self._descriptor is not None:
            self.files.close(self.hand_over())


def claim_log(path: Path, flags: int, files: FileSystem) -> LogClaim:
    """Open a log and lock it; raise UsageError if another process writes it."""
    claim = LogClaim(path, files, files.open(path, flags))
    try:
        # The lock is on the file itself and ends with the process, however that ends; a file that
        # marks a lock would stay behind after a crash.
        files.lock(claim.descriptor)
    except BlockingIOError:
        claim.close()
        raise UsageError(f"{path}: another process is writing this log; wait for it") from None
    except BaseException:
        claim.close()
        raise
    return claim


def claim_run(run_dir: Path, *, files: FileSystem | None = None) -> LogClaim:
    """Lock the log of a run that is to be changed, all of whose files can be written."""
    path, files = run_dir / EVENTS_FILE, files or FileSystem()
    for other in (checksum_path(path), run_dir / OPERATIONAL_FILE):
        require_own_file(files, other)
    try:
        return claim_log(path, _EXISTING, files)
    except OSError as error:
        raise UnreadableFileError(path, error.strerror or str(error)) from error


def open_journal(
    path: Path, *, files: FileSystem, has_checksums: bool, claim: LogClaim | None = None
) -> Journal:
    """Open or create a log for appending and recover it after a crash.

    Args:
        path: the log.
        files: the file operations.
        has_checksums: whether it has a checksum file.
        claim: the lock on the log, if it is already held; the journal takes it over.
    """
    try:
        return _open_journal(path, files, has_checksums=has_checksums, claim=claim)
    except OSError as error:
        raise TelemetryLostError(path, error.errno, error.strerror or str(error), None) from error


def _open_journal(
    path: Path, files: FileSystem, *, has_checksums: bool, claim: LogClaim | None
) -> Journal:
    is_new = not path.exists()
    claim = claim or claim_log(path, _APPEND, files)
    checksum_descriptor = None
    try:
        scan = recover_log(path) if has_checksums else recover_plain_log(path)
        # Before the first byte is written: a damaged log must not be continued.
        verify_records(path, scan.records)
        if has_checksums:
            checksum_descriptor = files.open(checksum_path(path), _APPEND)
        journal = _mended(path, files, claim.descriptor, checksum_descriptor, scan)
    except BaseException:
        claim.close()
        if checksum_descriptor is not None:
            files.close(checksum_descriptor)
        raise
    claim.hand_over()
    if is_new:
        files.fsync_directory(path.parent)
    return journal


def _mended(
    path: Path,
    files: FileSystem,
    descriptor: int,
    checksum_descriptor: int | None,
    scan: LogRecovery,
) -> Journal:
    """Truncate incomplete ends of both files, then add a checksum for uncovered whole events."""
    num_bytes_cut = scan.num_bytes - scan.whole_end
    num_uncovered = sum(record.num_events for record in scan.uncovered)
    covered = b"".join(record.line() for record in scan.records)
    added = b"".join(record.line() for record in scan.uncovered)
    if num_bytes_cut:
        files.truncate(descriptor, scan.whole_end)
    journal = Journal(
        path=path,
        files=files,
        descriptor=descriptor,
        checksum_descriptor=checksum_descriptor,
        recovery=Recovery(num_bytes_cut=num_bytes_cut, num_events_covered=num_uncovered),
        num_bytes=scan.whole_end,
        next_seq=scan.next_seq,
        checksum_bytes=len(covered) + len(added),
        is_dirty=num_bytes_cut > 0 or num_uncovered > 0,
    )
    for record in (*scan.records, *scan.uncovered):
        journal.note_indexed(record)
    if checksum_descriptor is not None:
        # Records beyond the whole part describe bytes that were cut off.
        files.truncate(checksum_descriptor, len(covered))
        if added:
            files.write(checksum_descriptor, added)
    journal.sync()
    return journal


def apply_cut(claim: LogClaim, cut: "LogCut") -> None:
    """Truncate a claimed log.

    The removed events are first saved as `events.redone-N.jsonl`, then the checksum file is
    replaced, then the log is truncated. After a crash between these steps, the same cut can be
    planned and applied again: the log still holds every event before it.
    """
    files = claim.files
    if cut.redone:
        _keep_redone(claim.path.parent, cut.redone, files)
    checksums = b"".join(item.line() for item in cut.records)
    # Before the log is cut: records that end early are harmless, as recovery adds the missing ones.
    write_atomically(files, checksum_path(claim.path), checksums)
    files.truncate(claim.descriptor, cut.num_bytes)
    files.fsync(claim.descriptor)


class LogCut(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a log, and what is not."""

    records: list[CommitRecord]
    num_bytes: int
    num_events_cut: int
    redone: bytes


def plan_cut(path: Path, last_seq: int) -> LogCut:
    """Decide how to truncate a log after an event, which must be in it, undamaged."""
    scan = recover_log(path)
    if scan.next_seq <= last_seq:
        raise UnreadableFileError(
            path, f"ends with event {scan.next_seq - 1}, before the event {last_seq} asked for"
        )
    verify_records(path, [record for record in scan.records if record.first_seq <= last_seq])
    records = [record for record in scan.records if record.last_seq <= last_seq]
    start, first_seq = (records[-1].end, records[-1].last_seq + 1) if records else (0, 0)
    with path.open("rb") as file:
        file.seek(start)
        # An incomplete line after whole_end is not an event and is not saved.
        rest = Block(first_seq, scan.next_seq - first_seq, file.read(scan.whole_end - start))
    redone = rest.from_seq(last_seq + 1).data
    # `last_seq` may lie within a block; the kept part of it then gets its own record.
    num_kept = last_seq + 1 - first_seq
    kept = Block(first_seq, num_kept, rest.data[: len(rest.data) - len(redone)])
    if num_kept:
        records.append(CommitRecord.of(kept, start, parse_facts(kept)))
    return LogCut(
        records=records,
        num_bytes=start + len(kept.data),
        num_events_cut=scan.next_seq - (last_seq + 1),
        redone=redone,
    )


def _keep_redone(run_dir: Path, redone: bytes, files: FileSystem) -> None:
    number = 1
    while (path := run_dir / f"events.redone-{number}.jsonl").exists():
        # Already saved by an earlier attempt that crashed after this step.
        if path.stat().st_size == len(redone) and path.read_bytes() == redone:
            return
        number += 1
    write_atomically(files, path, redone)
