"""Following a log file: existing lines, then new ones, even if the file is replaced."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from esper.leyline.errors import UnreadableFileError
from esper.nissa.reading.lines import MAX_LINE_BYTES, is_compressed, read_lines

__all__ = ["LineFilter", "follow_file"]

POLL_S: Final = 0.2

_READ_BYTES: Final = 1 << 20


class _Head(msgspec.Struct, gc=False):
    event_type: str
    seq: int | None = None
    env_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LineFilter:
    """Selects events by type, env and seq; None means no restriction."""

    types: frozenset[str] | None = None
    env_ids: frozenset[int] | None = None
    """Events without an env always match, as on the live server."""
    since: int | None = None

    def accepts(self, line: bytes) -> bool:
        """Check whether a line matches; undecodable lines match, so that they stay visible."""
        if self.types is None and self.env_ids is None and self.since is None:
            return True
        try:
            head = msgspec.json.decode(line, type=_Head)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return True
        return (
            (self.types is None or head.event_type in self.types)
            and (self.env_ids is None or head.env_id is None or head.env_id in self.env_ids)
            and (self.since is None or head.seq is None or head.seq >= self.since)
        )


def follow_file(
    path: Path, *, is_following: bool, wait: Callable[[float], object] = time.sleep
) -> Iterator[bytes]:
    """Yield the lines of a file and, if following, lines appended later, until `wait` ends it.

    Args:
        path: a log; a compressed one is read once and cannot be followed.
        is_following: continue after the last line.
        wait: called with the poll interval in seconds when there is no new line; it ends the
            iteration by returning True.
    """
    if not is_following:
        yield from (line for line in read_lines(path) if line.strip())
        return
    if path.is_file() and is_compressed(path):
        raise UnreadableFileError(path, "a compressed file cannot be followed; omit -f")
    follower = _Follower(path)
    try:
        while True:
            lines = follower.new_lines()
            yield from lines
            if not lines and wait(POLL_S):
                return
    finally:
        follower.close()


@dataclass(eq=False, slots=True)
class _Follower:
    """Tracks the read position in a file that may grow, shrink, disappear or be replaced."""

    path: Path
    _stream: BinaryIO | None = None
    _tail: bytes = b""
    _offset: int = field(default=0)

    def new_lines(self) -> list[bytes]:
        """Return the whole lines that were added since the last call."""
        if self._stream is not None and self._is_replaced(self._stream):
            rest = self._read()
            if rest:
                return rest
            self.close()
        if self._stream is None:
            try:
                self._stream = self.path.open("rb")
            except FileNotFoundError:
                return []  # removed and not recreated yet
            except OSError as error:
                reason = f"cannot be read: {error.strerror}"
                raise UnreadableFileError(self.path, reason) from None
        return self._read()

    def _read(self) -> list[bytes]:
        assert self._stream is not None
        block = self._stream.read(_READ_BYTES)
        self._offset += len(block)
        *lines, tail = (self._tail + block).split(b"\n")
        self._tail = tail if len(tail) < MAX_LINE_BYTES else b""
        return [line for line in lines if line.strip()]

    def _is_replaced(self, stream: BinaryIO) -> bool:
        """Check whether the path now refers to another file, or the file was truncated."""
        try:
            there = self.path.stat()
        except OSError:
            return False
        here = os.fstat(stream.fileno())
        return (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev) or (
            there.st_size < self._offset
        )

    def close(self) -> None:
        """Close the file; the next read starts at the beginning of the file then at the path."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._tail, self._offset = None, b"", 0
