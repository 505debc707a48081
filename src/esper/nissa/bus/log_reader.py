"""Reading the committed part of a log, whichever process writes it."""

import errno
from pathlib import Path
from typing import Final, Protocol

from esper.nissa.storage.blocks import Block
from esper.nissa.storage.log_recovery import MAX_LINE_BYTES

__all__ = ["PAGE_BYTES", "LogReader", "ReadableLog"]

PAGE_BYTES: Final = 64 * 1024
"""Approximate size of the blocks that a subscriber receives."""


class ReadableLog(Protocol):
    """The interface a reader needs of a log, whether or not this process writes it."""

    @property
    def path(self) -> Path:
        """Path of the log file."""

    @property
    def num_bytes(self) -> int:
        """Size of the committed part; bytes after it must not be read."""

    def offset_before(self, seq: int) -> tuple[int, int]:
        """Return the seq and offset of the nearest index entry at or before an event."""


class LogReader:
    """Reads the committed part of a log forward, in blocks of whole lines."""

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self._seq = 0
        self._offset = 0

    def read(self, seq: int, max_bytes: int = PAGE_BYTES) -> Block | None:
        """Return about `max_bytes` of events starting at `seq`; None past the committed end."""
        if seq != self._seq:
            self._seq, self._offset = self._log.offset_before(seq)
        while (block := self._read_next(max_bytes)) is not None:
            if block.next_seq > seq:
                return block.from_seq(seq)
        return None

    def _read_next(self, max_bytes: int) -> Block | None:
        # Bytes after the committed end may belong to a write in progress.
        num_left = self._log.num_bytes - self._offset
        if num_left <= 0:
            return None
        with self._log.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(min(max_bytes, num_left))
            if not data.endswith(b"\n"):
                whole, newline, _ = data.rpartition(b"\n")
                data = whole + newline if newline else data + file.readline(MAX_LINE_BYTES)
        if not data.endswith(b"\n"):
            # A reader that went on here would wait for these bytes without end.
            raise OSError(errno.EIO, "the log is not what was committed")
        block = Block(self._seq, data.count(b"\n"), data)
        self._seq, self._offset = block.next_seq, self._offset + len(data)
        return block
