"""Blocks verified by their checksum: what is in them is known without parsing them.

A block whose bytes match its row of `events.crc` is exactly what the journal wrote, and the row
says how many events of which type, env and severity that were.
"""

import os
import zlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple

from esper.nissa.reading.lines import LOG_NAME
from esper.nissa.storage.blocks import (
    BlockFacts,
    CommitRecord,
    checksum_path,
    iterate_records,
)

__all__ = ["LogPart", "block_start_after", "log_parts"]

MIN_LOG_PER_CHECKSUM: Final = 20
"""Log bytes per byte of checksums below which parsing blocks is as fast as parsing their rows."""
PIECE_BYTES: Final = 128 << 10
MAX_BLOCK_BYTES: Final = 16 << 20
"""Larger blocks are parsed in chunks instead of being loaded as a whole."""


class LogPart(NamedTuple):
    """Consecutive lines of a log: a block that matches its checksum, or what must be parsed."""

    start: int
    end: int | None
    """None for the end of the file."""
    num_events: int
    facts: BlockFacts | None
    """None if the part must be parsed."""
    data: bytes
    """The lines of a block, if they were asked for; empty if the part must be parsed."""


def block_start_after(path: Path, offset: int) -> int | None:
    """Return the start of the first block after an offset; None if no line starts there."""
    for record in _records(path, offset + 1) if _has_checksums(path) else ():
        with path.open("rb", buffering=0) as log:
            return record.start if _is_line_start(log, record.start) else None
    return None


def log_parts(
    path: Path, start: int, end: int | None, *, with_data: bool = False
) -> Iterator[LogPart]:
    """Yield the parts of a log, or of the lines from `start` to `end`, in order and without gaps.

    A block that does not match its record is parsed. So is the block behind it, unless a line
    starts there: otherwise its first line is the end of a damaged one.
    """
    parsed_from = start
    for record, data in _intact_blocks(path, start, end, with_data=with_data):
        if record.start > parsed_from:
            yield LogPart(parsed_from, record.start, 0, None, b"")
        yield LogPart(record.start, record.end, record.num_events, record.facts, data)
        parsed_from = record.end
    if parsed_from != end:
        yield LogPart(parsed_from, end, 0, None, b"")


def _intact_blocks(
    path: Path, start: int, end: int | None, *, with_data: bool
) -> Iterator[tuple[CommitRecord, bytes]]:
    """Yield the records, with facts, of the blocks that they match, and those blocks."""
    if not _has_checksums(path):
        return
    line_start = start
    with path.open("rb", buffering=0) as log:
        for record in _records(path, start):
            if end is not None and record.end > end:
                return
            num_bytes = record.end - record.start
            if record.facts is None or num_bytes > MAX_BLOCK_BYTES:
                continue
            if record.start != line_start and not _is_line_start(log, record.start):
                continue
            data = os.pread(log.fileno(), num_bytes, record.start) if with_data else b""
            crc = zlib.crc32(data) if with_data else _crc_of(log, record)
            if crc == record.crc and os.pread(log.fileno(), 2, record.end - 2) == b"}\n":
                yield record, data
                line_start = record.end


def _crc_of(log: FileIO, record: CommitRecord) -> int:
    """Read a block in pieces, which stay in a core's cache as the whole block would not."""
    crc = 0
    for offset in range(record.start, record.end, PIECE_BYTES):
        piece = os.pread(log.fileno(), min(PIECE_BYTES, record.end - offset), offset)
        crc = zlib.crc32(piece, crc)
    return crc


def _is_line_start(log: FileIO, offset: int) -> bool:
    return offset == 0 or os.pread(log.fileno(), 1, offset - 1) == b"\n"


def _has_checksums(path: Path) -> bool:
    if path.name != LOG_NAME or not path.is_file() or not checksum_path(path).is_file():
        return False
    return path.stat().st_size >= MIN_LOG_PER_CHECKSUM * checksum_path(path).stat().st_size


def _records(path: Path, start: int) -> Iterator[CommitRecord]:
    return iterate_records(checksum_path(path), path.stat().st_size, start)
