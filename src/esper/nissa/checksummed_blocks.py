"""Blocks that checksums vouch for: their event types are read without parsing every byte.

A block whose bytes match its row of `events.crc` is exactly what the journal wrote, and the journal
writes whole events only. What costs next to nothing to see is seen nevertheless: each line begins
as the writer begins it, and there are as many as the row says.
"""

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from esper.nissa.blocks import CommitRecord, checksum_path, read_records
from esper.nissa.lines import LOG_NAME

__all__ = ["VouchedBlock", "block_start_after", "vouched_blocks"]

MIN_LOG_PER_CHECKSUM: Final = 500
"""Bytes of log per byte of checksums; blocks of less than about 20 KiB are parsed as soon."""
MAX_BLOCK_BYTES: Final = 16 << 20
"""A larger block is parsed piece by piece instead of being held as a whole."""

_HEAD: Final = b'{"event_type":"'
_is_type: Final = re.compile(rb"[A-Z_]+").fullmatch


class VouchedBlock(NamedTuple):
    """A block that is as it was written."""

    types: list[bytes]
    """Of each of its lines."""
    end: int
    """The offset behind it."""


def block_start_after(path: Path, offset: int) -> int | None:
    """Return where the first block behind an offset begins, if that is the start of a line."""
    for record in _records(path):
        if record.start > offset:
            with path.open("rb") as log:
                is_line_start = os.pread(log.fileno(), 1, record.start - 1) == b"\n"
            return record.start if is_line_start else None
    return None


def vouched_blocks(path: Path, start: int, end: int | None) -> Iterator[VouchedBlock]:
    """Yield blocks that follow each other from `start` on, up to the first that has to be parsed.

    There are none if no block begins at `start`. One that is not what its record says, and whatever
    lies behind it, has to be parsed: its last line may have lost its end.
    """
    records = [record for record in _records(path) if record.start >= start]
    if not records or records[0].start != start:
        return
    with path.open("rb") as log:
        for record in records:
            num_bytes = record.end - record.start
            if num_bytes > MAX_BLOCK_BYTES or (end is not None and record.end > end):
                return
            types = _vouched_types(os.pread(log.fileno(), num_bytes, record.start), record)
            if types is None:
                return
            yield VouchedBlock(types, record.end)


def _records(path: Path) -> list[CommitRecord]:
    checksums = checksum_path(path)
    if path.name != LOG_NAME or not checksums.is_file():
        return []
    log_bytes = path.stat().st_size
    if log_bytes < MIN_LOG_PER_CHECKSUM * checksums.stat().st_size:
        return []
    return read_records(checksums, log_bytes)


def _vouched_types(data: bytes, record: CommitRecord) -> list[bytes] | None:
    """Return the type of each line, or None for a block that nobody vouches for."""
    if zlib.crc32(data) != record.crc or not data.endswith(b"}\n"):
        return None
    types: list[bytes] = []
    find, num_bytes, num_head = data.find, len(data), len(_HEAD)
    position = 0
    while position < num_bytes:
        if not data.startswith(_HEAD, position):
            return None
        type_end = find(b'"', position + num_head)
        types.append(data[position + num_head : type_end])
        position = find(b"\n", type_end) + 1  # there is one, at the end of the block if not before
    is_whole = len(types) == record.num_events and all(map(_is_type, set(types)))
    return types if is_whole else None
