"""The sink `jsonl:PATH`: the lines of the log, appended to another file or a pipe."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from esper.leyline.errors import UnreadableFileError
from esper.leyline.telemetry import Event, encode_event
from esper.nissa.sinks.contract import SinkRequest

__all__ = ["open_sink"]

PIECE_BYTES: Final = 1 << 20


class _JsonlSink:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, events: Sequence[Event]) -> None:
        """Append a line for each event."""
        self._stream.write(b"".join(encode_event(event) + b"\n" for event in events))
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def open_sink(request: SinkRequest) -> _JsonlSink:
    """Open the file: a new one, or the one that was begun."""
    assert request.target is not None, "the registry requires a path"
    path = Path(request.target)
    if path.is_file():
        if not request.is_continued and path.stat().st_size:
            raise UnreadableFileError(path, "exists already; choose another file or remove it")
        _drop_torn_line(path)
    return _JsonlSink(path.open("ab"))


def _drop_torn_line(path: Path) -> None:
    """Cut off what a sink that was killed has written of a line; it is delivered again."""
    with path.open("rb+") as file:
        file.truncate(_end_of_lines(file))
        os.fsync(file.fileno())


def _end_of_lines(file: BinaryIO) -> int:
    """Return the length of a file up to its last newline."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(end - PIECE_BYTES, 0)
        file.seek(start)
        place = file.read(end - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        end = start
    return 0
