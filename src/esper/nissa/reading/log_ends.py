"""The ends of a log: what a list of runs shows, without reading what is in between."""

import mmap
import re
from collections.abc import Iterator
from itertools import pairwise
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

_WINDOW_BYTES: Final = 1 << 20
"""How much of a log is searched, and so held in memory, at a time; a multiple of a page."""
_NEWLINE: Final = b"\n"
_MAX_ALARM_BYTES: Final = len(b'"severity":"critical"')
_ALARM: Final = re.compile(rb'"severity":"(?:warning|error|critical)"')


def read_ends(log: Path, num_rounds: int) -> list[bytes]:
    """Return lines of an uncompressed log, in its order and without newlines.

    They are the first line and the last one, the end of each of the last `num_rounds` rounds, the
    last policy update, and the alarms of the last rounds. What is not a whole line is left out.
    """
    try:
        with log.open("rb") as file:
            if log.stat().st_size == 0:  # which cannot be mapped
                return []
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(data, num_rounds)
    except OSError as error:
        raise UnreadableFileError(log, f"cannot be read: {error.strerror}") from None


def _read(data: mmap.mmap, num_rounds: int) -> list[bytes]:
    end = data.rfind(_NEWLINE) + 1
    if end == 0:
        return []
    floor = max(end - TAIL_BYTES, 0)
    round_ends = _last_of(data, EventType.BATCH_EPOCH_COMPLETED, floor, end, num_rounds)
    updates = _last_of(data, EventType.PPO_UPDATE_COMPLETED, floor, end, 1)
    recent = round_ends[RECENT_ROUNDS] if len(round_ends) > RECENT_ROUNDS else floor
    starts = {0, _start_of_line(data, end - 1), *round_ends, *updates, *_alarms(data, recent, end)}
    lines = (data[start : _end_of_line(data, start)] for start in sorted(starts))
    return [line for line in lines if len(line) < MAX_LINE_BYTES]


def _last_of(data: mmap.mmap, event_type: EventType, floor: int, end: int, limit: int) -> list[int]:
    """Return where the last events of a type begin, the last one first."""
    mark = b'{"event_type":"%s"' % event_type.encode()
    found: list[int] = []
    for start, stop in reversed(_windows(floor, end)):
        place = min(stop + len(mark) - 1, end)
        while len(found) < limit and (place := data.rfind(mark, start, place)) >= 0:
            if place == 0 or data[place - 1 : place] == _NEWLINE:
                found.append(place)
        if len(found) == limit:
            break
        _release(data, start, stop)
    return found


def _alarms(data: mmap.mmap, floor: int, end: int) -> Iterator[int]:
    for start, stop in _windows(floor, end):
        for match in _ALARM.finditer(data, start, min(stop + _MAX_ALARM_BYTES - 1, end)):
            yield _start_of_line(data, match.start())
        _release(data, start, stop)


def _windows(floor: int, end: int) -> list[tuple[int, int]]:
    """Divide a part of a log; all but the first and last boundary are those of pages."""
    inner = range((floor // _WINDOW_BYTES + 1) * _WINDOW_BYTES, end, _WINDOW_BYTES)
    return list(pairwise((floor, *inner, end)))


def _release(data: mmap.mmap, start: int, stop: int) -> None:
    """Take a window out of this process's memory; it is read again if it is looked at."""
    first_page = start // mmap.PAGESIZE * mmap.PAGESIZE
    data.madvise(mmap.MADV_DONTNEED, first_page, stop - first_page)


def _start_of_line(data: mmap.mmap, place: int) -> int:
    return data.rfind(_NEWLINE, 0, place) + 1


def _end_of_line(data: mmap.mmap, start: int) -> int:
    return data.find(_NEWLINE, start)
