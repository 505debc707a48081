"""Following a log file: what is in it, then what is added, across replacement of the file."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from esper.leyline.errors import UnreadableFileError
from esper.nissa.lines import MAX_LINE_BYTES, is_compressed, read_lines

__all__ = ["LineFilter", "follow_file"]

POLL_S: Final = 0.2

_READ_BYTES: Final = 1 << 20


class _Head(msgspec.Struct, gc=False):
    event_type: str
    seq: int | None = None
    env_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LineFilter:
    """Which events are wanted; None is no restriction."""

    types: frozenset[str] | None = None
    env_ids: frozenset[int] | None = None
    """Events of no env always pass, as they do on the live server."""
    since: int | None = None

    def accepts(self, line: bytes) -> bool:
        """Tell whether a line is wanted; a line that cannot be read is, so that it is seen."""
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
    path: Path, *, is_following: bool, wait: Callable[[float], None] = time.sleep
) -> Iterator[bytes]:
    """Yield the lines of a file and, when following, those that come later, without end.

    Args:
        path: a log; a compressed one is read once and cannot be followed.
        is_following: go on after the last line.
        wait: called with the seconds to wait whenever there is nothing new.
    """
    if not is_following:
        yield from (line for line in read_lines(path) if line.strip())
        return
    if path.is_file() and is_compressed(path):
        raise UnreadableFileError(path, "a compressed file does not grow; leave out -f")
    follower = _Follower(path)
    try:
        while True:
            lines = follower.new_lines()
            yield from lines
            if not lines:
                wait(POLL_S)
    finally:
        follower.close()


@dataclass(eq=False, slots=True)
class _Follower:
    """Keeps its place in a file that grows, shrinks, vanishes or is replaced."""

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
                return []  # between removal and return of the file
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
        """Tell whether the path names another file now, or one that was cut back."""
        try:
            there = self.path.stat()
        except OSError:
            return False
        here = os.fstat(stream.fileno())
        return (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev) or (
            there.st_size < self._offset
        )

    def close(self) -> None:
        """Let go of the file; the next call starts at the beginning of whatever is there."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._tail, self._offset = None, b"", 0
