"""Crash recovery of a log: which part is covered by checksums, complete, or torn."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from esper.leyline.errors import EventDecodeError, UnreadableFileError
from esper.leyline.telemetry import decode_event
from esper.nissa.storage.blocks import Block, CommitRecord, checksum_path, read_records

__all__ = ["LogRecovery", "recover_log", "verify_records"]


class LogRecovery(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a log and its checksum file."""

    records: list[CommitRecord]
    """Contiguous from byte 0, all within the file."""
    tail: Block
    """Whole lines after the last record that continue the sequence."""
    num_bytes: int
    """Size of the file; bytes after the tail are incomplete or out of sequence."""

    @property
    def covered_end(self) -> int:
        """Return the offset after the last block that has a checksum."""
        return self.records[-1].end if self.records else 0

    @property
    def whole_end(self) -> int:
        """Return the offset after the last complete event."""
        return self.covered_end + len(self.tail.data)

    @property
    def next_seq(self) -> int:
        """Return the seq of the next event to be written."""
        return self.tail.next_seq


def recover_log(log_path: Path, *, has_checksums: bool) -> LogRecovery:
    """Read the checksum records and the uncovered tail; covered bytes are not verified here."""
    num_bytes = log_path.stat().st_size
    records = read_records(checksum_path(log_path), num_bytes) if has_checksums else []
    covered_end = records[-1].end if records else 0
    next_seq = records[-1].last_seq + 1 if records else 0
    lines = list(_continuing_lines(log_path, covered_end, next_seq))
    tail = Block(next_seq, len(lines), b"".join(lines))
    return LogRecovery(records=records, tail=tail, num_bytes=num_bytes)


def _continuing_lines(log_path: Path, offset: int, seq: int) -> Iterator[bytes]:
    with log_path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n") or _seq_of(line) != seq:
                return
            yield line
            seq += 1


def _seq_of(line: bytes) -> int | None:
    try:
        return decode_event(line).seq
    except EventDecodeError:
        return None


def verify_records(log_path: Path, records: list[CommitRecord]) -> None:
    """Verify the checksum of every committed block; raise at the first mismatch."""
    with log_path.open("rb") as file:
        for record in records:
            if not record.describes(file.read(record.end - record.start)):
                raise UnreadableFileError(
                    log_path,
                    f"the block of events {record.first_seq} to {record.last_seq} at byte "
                    f"{record.start} is damaged; 'esper-telemetry validate' shows the damage",
                )
