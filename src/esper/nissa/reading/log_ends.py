"""The ends of a log: what a list of runs needs of it, without reading the rest."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.leyline.errors import UnreadableFileError
from esper.leyline.telemetry import EventType
from esper.nissa.reading.lines import MAX_LINE_BYTES

__all__ = ["read_ends"]

TAIL_BYTES: Final = 64 << 20
"""How far back rounds are looked for, which bounds the time for one log."""
RECENT_ROUNDS: Final = 2
"""Finished rounds whose alarms are read."""
FIRST_PIECE_BYTES: Final = 4 << 10
"""Longer than any mark that is searched for."""
PIECE_BYTES: Final = 256 << 10
"""Largest part of a log that is held in memory, besides the lines that are returned."""

_NEWLINE: Final = b"\n"
_ALARM: Final = re.compile(rb'"severity":"(?:warning|error|critical)"')
_ALARM_BYTES: Final = 21
"""The longest match."""


def read_ends(log: Path, num_rounds: int) -> list[bytes]:
    """Return lines of an uncompressed log, in its order and without newlines.

    They are the first line and the last one, the end of each of the last `num_rounds` rounds, the
    last policy update, and the alarms of the last rounds. What is not a whole line is left out.
    """
    try:
        # A pipe without a writer is opened as well, so that it can be refused.
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise UnreadableFileError(log, f"cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableFileError(log, "not a regular file")
        return _read(_Bytes(descriptor, status.st_size), num_rounds)
    except OSError as error:
        raise UnreadableFileError(log, f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Bytes:
    """The bytes of a file, searched in pieces.

    Not mapped: a mapped file that is cut meanwhile, as a resume does, ends the process that reads
    it, and what was read of it counts as the memory of that process.
    """

    descriptor: int
    num_bytes: int

    def part(self, start: int, end: int) -> bytes:
        """Return a part; less of it if the file was cut."""
        return os.pread(self.descriptor, end - start, start)

    def rfind(self, mark: bytes, floor: int, end: int) -> int:
        """Return where a mark begins that ends last, between two places; -1 if there is none."""
        size = FIRST_PIECE_BYTES
        while end - floor >= len(mark):
            start = max(floor, end - size)
            place = self.part(start, end).rfind(mark)
            if place >= 0:
                return start + place
            if start == floor:
                break
            # The mark may begin before this piece and end in it.
            end, size = start + len(mark) - 1, min(2 * size, PIECE_BYTES)
        return -1

    def line_at(self, start: int) -> bytes | None:
        """Return the line that begins at a place; None if it has no end or is too long."""
        line, size = b"", FIRST_PIECE_BYTES
        while len(line) < MAX_LINE_BYTES:
            piece = self.part(start + len(line), min(start + len(line) + size, self.num_bytes))
            if not piece:
                return None
            line += piece
            place = line.find(_NEWLINE, len(line) - len(piece))
            if place >= 0:
                return line[:place]
            size = min(2 * size, PIECE_BYTES)
        return None

    def start_of_line(self, place: int) -> int:
        """Return where the line begins to which a place belongs."""
        return self.rfind(_NEWLINE, 0, place) + 1


def _read(data: _Bytes, num_rounds: int) -> list[bytes]:
    end = data.rfind(_NEWLINE, 0, data.num_bytes) + 1
    if end == 0:
        return []
    floor = max(end - TAIL_BYTES, 0)
    round_ends = _last_of(data, EventType.BATCH_EPOCH_COMPLETED, floor, end, num_rounds)
    updates = _last_of(data, EventType.PPO_UPDATE_COMPLETED, floor, end, 1)
    recent = round_ends[RECENT_ROUNDS] if len(round_ends) > RECENT_ROUNDS else floor
    starts = {0, data.start_of_line(end - 1), *round_ends, *updates, *_alarms(data, recent, end)}
    lines = map(data.line_at, sorted(starts))
    return [line for line in lines if line is not None]


def _last_of(data: _Bytes, event_type: EventType, floor: int, end: int, limit: int) -> list[int]:
    """Return where the last events of a type begin, the last one first."""
    mark = b'{"event_type":"%s"' % event_type.encode()
    found: list[int] = []
    while len(found) < limit and (end := data.rfind(mark, floor, end)) >= 0:
        if end == 0 or data.part(end - 1, end) == _NEWLINE:
            found.append(end)
    return found


def _alarms(data: _Bytes, floor: int, end: int) -> Iterator[int]:
    for start in range(floor, end, PIECE_BYTES):
        # A match may begin in this piece and end in the next one.
        piece = data.part(start, min(start + PIECE_BYTES + _ALARM_BYTES - 1, end))
        for match in _ALARM.finditer(piece):
            yield data.start_of_line(start + match.start())
