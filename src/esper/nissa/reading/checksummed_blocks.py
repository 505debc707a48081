"""Blocks verified by their checksum: their event types are read without parsing every byte.

A block whose bytes match its row of `events.crc` is exactly what the journal wrote, and the journal
writes whole events only. Two cheap checks are made in addition: each line starts as the writer
starts it, and the number of lines matches the row.
"""

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from esper.nissa.reading.lines import LOG_NAME
from esper.nissa.storage.blocks import CommitRecord, checksum_path, read_records

__all__ = ["VouchedBlock", "block_start_after", "vouched_blocks"]

MIN_LOG_PER_CHECKSUM: Final = 500
"""Log bytes per checksum byte; parsing is as fast for blocks under about 20 KiB."""
MAX_BLOCK_BYTES: Final = 16 << 20
"""Larger blocks are parsed in chunks instead of being loaded as a whole."""

_HEAD: Final = b'{"event_type":"'
_is_type: Final = re.compile(rb"[A-Z_]+").fullmatch


class VouchedBlock(NamedTuple):
    """A block that matches its checksum."""

    types: list[bytes]
    """The event type of each line."""
    end: int
    """The offset just after the block."""


def block_start_after(path: Path, offset: int) -> int | None:
    """Return the start of the first block after an offset; None if no line starts there."""
    for record in _records(path):
        if record.start > offset:
            with path.open("rb") as log:
                is_line_start = os.pread(log.fileno(), 1, record.start - 1) == b"\n"
            return record.start if is_line_start else None
    return None


def vouched_blocks(path: Path, start: int, end: int | None) -> Iterator[VouchedBlock]:
    """Yield consecutive verified blocks from `start` on, up to the first that must be parsed.

    Yields nothing if no block begins at `start`. A block that does not match its record must be
    parsed together with everything after it, because its last line may be incomplete.
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
    """Return the event type of each line, or None if the block does not match its record."""
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
        position = find(b"\n", type_end) + 1  # always found: the block ends with a newline
    is_whole = len(types) == record.num_events and all(map(_is_type, set(types)))
    return types if is_whole else None
