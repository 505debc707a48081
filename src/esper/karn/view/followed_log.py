"""Following the log of a run directory that another process writes or has written."""

import os
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from esper.leyline.errors import EventDecodeError, UnreadableFileError
from esper.leyline.payloads import SubscriberLagged
from esper.leyline.telemetry import decode_event
from esper.nissa.bus.feed import LiveFeed
from esper.nissa.bus.subscribers import LiveSource
from esper.nissa.storage.blocks import Block
from esper.nissa.storage.journal import EVENTS_FILE

__all__ = ["FollowedLog", "follow", "open_source"]

CHUNK_BYTES: Final = 256 * 1024
POLL_S: Final = 0.2


@dataclass(eq=False, slots=True)
class FollowedLog:
    """A read-only view of a log, up to the last complete line that has been read."""

    path: Path
    num_bytes: int = 0
    """Bytes of complete lines read so far."""
    next_seq: int = 0
    _places: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Seq and offset of the start of every chunk, in ascending order."""

    def offset_before(self, seq: int) -> tuple[int, int]:
        """Return the seq and offset of the nearest chunk start at or before an event."""
        return self._places[max(bisect_right(self._places, (seq, 1 << 62)) - 1, 0)]

    def read_more(self) -> Block | None:
        """Return the next complete lines; None if there are none yet."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self.num_bytes:
                    raise UnreadableFileError(
                        self.path, "the log was truncated by a resumed run; start again"
                    )
                file.seek(self.num_bytes)
                data = file.read(CHUNK_BYTES)
                if data and not data.endswith(b"\n"):
                    whole, newline, _ = data.rpartition(b"\n")
                    data = whole + newline if newline else data + file.readline()
        except FileNotFoundError:
            return None  # not created yet
        except OSError as error:
            raise UnreadableFileError(self.path, error.strerror or str(error)) from None
        if not data.endswith(b"\n"):
            return None
        block = Block(self.next_seq, data.count(b"\n"), data)
        self._places.append((self.next_seq, self.num_bytes))
        self.num_bytes += len(data)
        self.next_seq = block.next_seq
        return block


def open_source(run_dir: Path) -> LiveSource:
    """Return a live source for a run directory; run `follow` to publish its events."""
    path = run_dir / EVENTS_FILE
    if not path.is_file():
        raise UnreadableFileError(run_dir, f"no {EVENTS_FILE} here; expected a run directory")
    return LiveSource(
        run_id=_run_id_of(path),
        log=FollowedLog(path),
        feed=LiveFeed(next_seq=0),
        note_lag=_ignore_lag,
    )


def _run_id_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            line = file.readline()
        return decode_event(line).run_id if line.endswith(b"\n") else ""
    except OSError as error:
        raise UnreadableFileError(path, error.strerror or str(error)) from None
    except EventDecodeError as error:
        raise UnreadableFileError(path, f"not the log of a run: {error.reason}") from None


def _ignore_lag(_: SubscriberLagged) -> None:
    """Discard lag reports: this process does not write the log."""


async def follow(source: LiveSource) -> None:
    """Publish lines as they are appended to a followed log.

    Consumes: the file. Produces: blocks on the source's feed. Waits for: the file to grow.
    Unblocked by: cancellation.
    """
    log = source.log
    assert isinstance(log, FollowedLog), "the source must come from open_source"
    while True:
        # Polled, because the writing process has no means to wake this one.
        block = await anyio.to_thread.run_sync(log.read_more)
        if block is None:
            await anyio.sleep(POLL_S)
        else:
            source.feed.publish(block)
            await anyio.to_thread.run_sync(source.index.catch_up)
