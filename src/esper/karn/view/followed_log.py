"""Following the log of a run directory that another process writes or has written."""

import os
import stat
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import anyio
import anyio.to_thread

from esper.leyline.errors import EventDecodeError, UnreadableFileError
from esper.leyline.payloads import SubscriberLagged
from esper.leyline.telemetry import decode_event
from esper.nissa.bus.feed import LiveFeed
from esper.nissa.bus.subscribers import LiveSource
from esper.nissa.reading.lines import MAX_LINE_BYTES
from esper.nissa.storage.blocks import Block
from esper.nissa.storage.journal import EVENTS_FILE

__all__ = ["FollowedLog", "LogRestartedError", "follow", "open_source", "publish_up_to"]

CHUNK_BYTES: Final = 256 * 1024
PLACE_BYTES: Final = 64 * 1024
"""Minimum distance between two entries of the seq index."""
TAIL_BYTES: Final = 256
POLL_S: Final = 0.2
SHORT_BYTES: Final = 16 * 1024
"""Up to this much is read on the event loop, which takes about 0.1 ms."""


class LogRestartedError(UnreadableFileError):
    """What was read of a log is no longer in it: a resumed run has cut it back."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "the log was truncated by a resumed run; start again")


@dataclass(eq=False, slots=True)
class FollowedLog:
    """A read-only view of a log, up to the last complete line that has been read."""

    path: Path
    num_bytes: int = 0
    """Bytes of complete lines read so far."""
    next_seq: int = 0
    _places: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Seq and offset of the start of some chunks, in ascending order."""
    _tail: bytes = b""
    """The last bytes read, which differ if another run has written there since."""
    _identity: tuple[int, int] | None = None

    def offset_before(self, seq: int) -> tuple[int, int]:
        """Return the seq and offset of the nearest indexed chunk at or before an event."""
        return self._places[max(bisect_right(self._places, (seq, 1 << 62)) - 1, 0)]

    def read_more(self, end: int | None = None) -> Block | None:
        """Return the next complete lines; None if there are none yet.

        Args:
            end: how much of the file is committed; None reads all complete lines.
        """
        try:
            with open(self.path, "rb", opener=_open_without_waiting) as file:
                self._check(file)
                data = self._read_lines(file, end)
        except FileNotFoundError:
            return None  # not created yet
        except OSError as error:
            raise UnreadableFileError(self.path, error.strerror or str(error)) from None
        if not data.endswith(b"\n"):
            return None
        block = Block(self.next_seq, data.count(b"\n"), data)
        if self.num_bytes - self._places[-1][1] >= PLACE_BYTES:
            self._places.append((self.next_seq, self.num_bytes))
        self.num_bytes += len(data)
        self.next_seq = block.next_seq
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        return block

    def _check(self, file: BinaryIO) -> None:
        """Raise LogRestartedError unless the file still holds what was read of it.

        Its size is not enough: a resumed run that cuts off little soon writes as much again.
        """
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableFileError(self.path, "not a regular file")
        identity = (status.st_dev, status.st_ino)
        tail = os.pread(file.fileno(), len(self._tail), self.num_bytes - len(self._tail))
        if self._identity not in (None, identity) or tail != self._tail:
            raise LogRestartedError(self.path)
        self._identity = identity

    def _read_lines(self, file: BinaryIO, end: int | None) -> bytes:
        file.seek(self.num_bytes)
        data = file.read(CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - self.num_bytes))
        if data and not data.endswith(b"\n"):
            whole, newline, _ = data.rpartition(b"\n")
            data = whole + newline if newline else data + file.readline(MAX_LINE_BYTES)
            if len(data) > MAX_LINE_BYTES:
                raise UnreadableFileError(self.path, f"has a line of over {MAX_LINE_BYTES} bytes")
        return data


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe without a writer is opened as well."""
    return os.open(path, flags | os.O_NONBLOCK)


def _ignore_lag(_: SubscriberLagged) -> None:
    """Discard lag reports: this process does not write the log."""


def open_source(
    run_dir: Path,
    *,
    run_id: str | None = None,
    note_lag: Callable[[SubscriberLagged], None] = _ignore_lag,
) -> LiveSource:
    """Return a live source for a run directory; run `follow` to publish its events.

    Args:
        run_dir: the run directory.
        run_id: the run's id; None takes it from the first event.
        note_lag: called when a subscriber has lost events.
    """
    path = run_dir / EVENTS_FILE
    if not path.is_file():
        raise UnreadableFileError(run_dir, f"no {EVENTS_FILE} here; expected a run directory")
    return LiveSource(
        run_id=_run_id_of(path) if run_id is None else run_id,
        log=FollowedLog(path),
        feed=LiveFeed(next_seq=0),
        note_lag=note_lag,
    )


def _run_id_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            line = file.readline(MAX_LINE_BYTES)
        return decode_event(line).run_id if line.endswith(b"\n") else ""
    except OSError as error:
        raise UnreadableFileError(path, error.strerror or str(error)) from None
    except EventDecodeError as error:
        raise UnreadableFileError(path, f"not the log of a run: {error.reason}") from None


async def follow(source: LiveSource) -> None:
    """Publish lines as they are appended to a followed log.

    Consumes: the file. Produces: blocks on the source's feed. Waits for: the file to grow.
    Unblocked by: cancellation.
    """
    while True:
        # Polled, because the writing process has no means to wake this one.
        await publish_up_to(source, None)
        await anyio.sleep(POLL_S)


async def publish_up_to(source: LiveSource, end: int | None) -> None:
    """Publish the complete lines of a followed log, up to an offset if one is given."""
    log = source.log
    assert isinstance(log, FollowedLog), "the source must come from open_source"
    is_more = True
    while is_more and (end is None or log.num_bytes < end):
        if end is not None and end - log.num_bytes <= SHORT_BYTES:
            # What was committed a moment ago is in the page cache: waking a thread takes longer.
            is_more = _publish_next(source, log, end)
        else:
            is_more = await anyio.to_thread.run_sync(_publish_next, source, log, end)


def _publish_next(source: LiveSource, log: FollowedLog, end: int | None) -> bool:
    """Publish the next complete lines; return False if there are none yet."""
    block = log.read_more(end)
    if block is None:
        return False
    source.feed.publish(block)
    # Indexed as it grows, so that no request pays for what came before it.
    source.index.catch_up()
    return True
