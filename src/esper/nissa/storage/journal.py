"""Journals: the append-only logs of a run with checksums, crash recovery and truncation."""

import contextlib
import errno
import os
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from esper.leyline.errors import TelemetryLostError, UnreadableFileError, UsageError
from esper.nissa.storage.blocks import Block, CommitRecord, checksum_path
from esper.nissa.storage.files import FileSystem, write_atomically
from esper.nissa.storage.log_recovery import LogRecovery, recover_log, verify_records

__all__ = ["EVENTS_FILE", "OPERATIONAL_FILE", "Journal", "Recovery", "cut_back", "open_journal"]

EVENTS_FILE: Final = "events.jsonl"
OPERATIONAL_FILE: Final = "operational.jsonl"
INDEX_STRIDE_BYTES: Final = 64 * 1024
"""Minimum distance between two entries of the seq index: 16,000 entries for 1 GB."""
_APPEND: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND


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
    is_dirty: bool = False
    """Whether anything was written since the last fsync."""
    _index: list[_IndexEntry] = field(default_factory=lambda: [_IndexEntry(0, 0)])

    @property
    def last_seq(self) -> int | None:
        """Return the seq of the last committed event; None if there is none yet."""
        return self.next_seq - 1 if self.next_seq else None

    def append(self, block: Block) -> None:
        """Write a block, then its checksum; if either write fails, truncate both files back."""
        assert block.first_seq == self.next_seq, "blocks of a journal are contiguous"
        if self.files.num_links(self.descriptor) == 0:
            raise OSError(errno.ENOENT, "the file was removed while it was being written")
        record = CommitRecord.of(block, self.num_bytes)
        line = record.line()
        self.is_dirty = True
        try:
            self.files.write(self.descriptor, block.data)
            if self.checksum_descriptor is not None:
                self.files.write(self.checksum_descriptor, line)
        except OSError:
            self._take_back()
            raise
        self.note_indexed(record)
        self.checksum_bytes += len(line)
        self.next_seq = block.next_seq
        self.num_bytes = record.end

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
            self.files.fsync(self.descriptor)
            if self.checksum_descriptor is not None:
                self.files.fsync(self.checksum_descriptor)
            self.is_dirty = False

    def close(self) -> None:
        """Close the files."""
        self.files.close(self.descriptor)
        if self.checksum_descriptor is not None:
            self.files.close(self.checksum_descriptor)


def _seq_of_entry(entry: _IndexEntry) -> int:
    return entry.seq


def open_journal(path: Path, *, files: FileSystem, has_checksums: bool) -> Journal:
    """Open or create a log for appending and recover it after a crash."""
    try:
        return _open_journal(path, files, has_checksums=has_checksums)
    except OSError as error:
        raise TelemetryLostError(path, error.errno, error.strerror or str(error), None) from error


def _open_journal(path: Path, files: FileSystem, *, has_checksums: bool) -> Journal:
    is_new = not path.exists()
    descriptor = files.open(path, _APPEND)
    try:
        _claim(files, descriptor, path)
        scan = recover_log(path, has_checksums=has_checksums)
        verify_records(path, scan.records)
        checksum_descriptor = None
        if has_checksums:
            checksum_descriptor = files.open(checksum_path(path), _APPEND)
        journal = _mended(path, files, descriptor, checksum_descriptor, scan)
    except BaseException:
        files.close(descriptor)
        raise
    if is_new:
        files.fsync_directory(path.parent)
    return journal


def _claim(files: FileSystem, descriptor: int, path: Path) -> None:
    try:
        files.lock(descriptor)
    except BlockingIOError:
        raise UsageError(f"{path}: another process is writing this log; wait for it") from None


def _mended(
    path: Path,
    files: FileSystem,
    descriptor: int,
    checksum_descriptor: int | None,
    scan: LogRecovery,
) -> Journal:
    """Truncate incomplete ends of both files, then add a checksum for uncovered whole events."""
    num_bytes_cut = scan.num_bytes - scan.whole_end
    num_uncovered = 0 if checksum_descriptor is None else scan.tail.num_events
    checksum_bytes = sum(len(record.line()) for record in scan.records)
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
        checksum_bytes=checksum_bytes,
        is_dirty=num_bytes_cut > 0,
    )
    for record in scan.records:
        journal.note_indexed(record)
    if checksum_descriptor is not None:
        files.truncate(checksum_descriptor, checksum_bytes)
        if num_uncovered:
            _cover_tail(journal, checksum_descriptor, scan)
    journal.sync()
    return journal


def _cover_tail(journal: Journal, checksum_descriptor: int, scan: LogRecovery) -> None:
    record = CommitRecord.of(scan.tail, scan.covered_end)
    journal.files.write(checksum_descriptor, record.line())
    journal.checksum_bytes += len(record.line())
    journal.note_indexed(record)
    journal.is_dirty = True


def cut_back(run_dir: Path, last_seq: int, *, files: FileSystem | None = None) -> int:
    """Truncate a run's log after the event `last_seq`; return the number of events removed.

    The removed events are first saved as `events.redone-N.jsonl`, then the checksum file is
    replaced, then the log is truncated. After a crash between these steps, the same call can be
    repeated: the log still holds every event up to `last_seq`.
    """
    files = files or FileSystem()
    path = run_dir / EVENTS_FILE
    try:
        descriptor = files.open(path, os.O_RDWR)
    except OSError as error:
        raise UnreadableFileError(path, error.strerror or str(error)) from error
    try:
        _claim(files, descriptor, path)
        cut = _plan_cut(path, last_seq)
        if cut.redone:
            _keep_redone(run_dir, cut.redone, files)
        write_atomically(files, checksum_path(path), b"".join(item.line() for item in cut.records))
        files.truncate(descriptor, cut.num_bytes)
        files.fsync(descriptor)
    finally:
        files.close(descriptor)
    return cut.num_events_cut


class _Cut(msgspec.Struct, frozen=True, kw_only=True):
    records: list[CommitRecord]
    num_bytes: int
    num_events_cut: int
    redone: bytes


def _plan_cut(path: Path, last_seq: int) -> _Cut:
    scan = recover_log(path, has_checksums=True)
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
        records.append(CommitRecord.of(kept, start))
    return _Cut(
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
