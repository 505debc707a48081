"""Crash recovery of a log: which part is covered by checksums, complete, or torn."""

from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from esper.leyline.errors import EventDecodeError, UnreadableFileError
from esper.leyline.telemetry import decode_event
from esper.nissa.storage.block_facts import parse_facts
from esper.nissa.storage.blocks import Block, CommitRecord, checksum_path, read_records

__all__ = ["LogRecovery", "recover_log", "recover_plain_log", "verify_records"]

MAX_LINE_BYTES: Final = 16 << 20
"""A longer line is not an event."""
COVERED_BYTES: Final = 64 << 10
"""Approximate size of the blocks in which uncovered events receive their checksums."""


class LogRecovery(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a log and its checksum file."""

    records: list[CommitRecord]
    """Contiguous from byte 0, all within the file."""
    uncovered: list[CommitRecord]
    """Of the whole lines after the last record that continue the sequence; not in the file yet."""
    num_bytes: int
    """Size of the file."""
    whole_end: int
    """The offset after the last complete event; what follows is incomplete or out of sequence."""
    next_seq: int
    """The seq of the next event to be written."""


class _Line(NamedTuple):
    data: bytes
    """The line, cut off after `MAX_LINE_BYTES`."""
    num_bytes: int
    is_whole: bool
    """Whether it ends with a newline."""


def recover_log(log_path: Path) -> LogRecovery:
    """Read the checksum records and the uncovered tail; covered bytes are not verified here."""
    num_bytes = log_path.stat().st_size
    records = read_records(checksum_path(log_path), num_bytes)
    end, next_seq = (records[-1].end, records[-1].last_seq + 1) if records else (0, 0)
    uncovered: list[CommitRecord] = []
    with log_path.open("rb") as file:
        file.seek(end)
        while (block := _continuing_block(file, next_seq)).num_events:
            uncovered.append(CommitRecord.of(block, end, parse_facts(block)))
            end, next_seq = uncovered[-1].end, block.next_seq
            file.seek(end)
    return LogRecovery(
        records=records,
        uncovered=uncovered,
        num_bytes=num_bytes,
        whole_end=end,
        next_seq=next_seq,
    )


def _continuing_block(file: BinaryIO, seq: int) -> Block:
    """Read whole lines that continue the sequence, up to the first that does not."""
    lines: list[bytes] = []
    num_bytes = 0
    while num_bytes < COVERED_BYTES and (line := _read_line(file)) is not None:
        if not line.is_whole or _seq_of(line.data) != seq + len(lines):
            break
        lines.append(line.data)
        num_bytes += line.num_bytes
    return Block(seq, len(lines), b"".join(lines))


def recover_plain_log(log_path: Path) -> LogRecovery:
    """Find the end of a log without checksums: all whole lines stay, damaged ones included."""
    whole_end = next_seq = 0
    with log_path.open("rb") as file:
        while (line := _read_line(file)) is not None and line.is_whole:
            seq = _seq_of(line.data)
            next_seq = (next_seq if seq is None else seq) + 1
            whole_end += line.num_bytes
        num_bytes = file.seek(0, 2)
    return LogRecovery(
        records=[], uncovered=[], num_bytes=num_bytes, whole_end=whole_end, next_seq=next_seq
    )


def _read_line(file: BinaryIO) -> _Line | None:
    data = piece = file.readline(MAX_LINE_BYTES)
    num_bytes = len(data)
    while piece and not piece.endswith(b"\n"):
        piece = file.readline(MAX_LINE_BYTES)
        num_bytes += len(piece)
    return _Line(data, num_bytes, piece.endswith(b"\n")) if num_bytes else None


def _seq_of(line: bytes) -> int | None:
    try:
        return decode_event(line).seq
    except EventDecodeError:
        return None


def verify_records(log_path: Path, records: list[CommitRecord]) -> None:
    """Verify the checksum of every committed block; raise at the first mismatch."""
    with log_path.open("rb") as file:
        for record in records:
            if not record.matches(file):
                raise UnreadableFileError(
                    log_path,
                    f"the block of events {record.first_seq} to {record.last_seq} at byte "
                    f"{record.start} is damaged; 'esper-telemetry validate' shows the damage",
                )
