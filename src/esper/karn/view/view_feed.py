"""Updates a view model from a run's logs: every event once, in order, in a worker thread."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from esper.karn.view.followed_log import FollowedLog
from esper.karn.view.snapshot import Patch, Snapshot
from esper.karn.view.view_model import ViewModel
from esper.leyline.errors import EventDecodeError, UnreadableFileError
from esper.leyline.telemetry import Event, decode_event
from esper.nissa.bus.log_reader import LogReader
from esper.nissa.bus.subscribers import LiveSource
from esper.nissa.reading.lines import is_compressed, read_lines
from esper.nissa.reading.run_lookup import find_log
from esper.nissa.storage.journal import OPERATIONAL_FILE

__all__ = ["Listener", "ViewFeed", "read_run"]

PAUSE_S: Final = 0.1
"""Minimum pause between reads, so that events are read in blocks instead of one by one."""
READ_BYTES: Final = 128 * 1024

Listener = Callable[[Event], None]


class ViewFeed:
    """A view model and the task that keeps it up to date.

    It reads the committed log itself instead of subscribing, so that it never loses an event,
    however far it lags, and never causes a SUBSCRIBER_LAGGED event.
    """

    def __init__(
        self, source: LiveSource, run_dir: Path, listeners: Sequence[Listener] = ()
    ) -> None:
        self._source = source
        self._reader = LogReader(source.log)
        self._operational = FollowedLog(run_dir / OPERATIONAL_FILE)
        self._listeners = tuple(listeners)
        self._next_seq = 0
        self._model = ViewModel()
        self._lock = threading.Lock()
        self.is_over = False
        """Whether the run has ended and the model is final."""

    def is_settled(self) -> bool:
        """Return whether the model is final."""
        return self.is_over

    @property
    def version(self) -> int:
        """Return the version of the model."""
        return self._model.version

    def patch(self, since: int, now: float, selected_env: int | None = None) -> Patch:
        """Return the changes since version `since`."""
        with self._lock:
            return self._model.patch(since, now, selected_env)

    def snapshot(self, now: float | None = None) -> Snapshot:
        """Return the whole view."""
        with self._lock:
            return self._model.snapshot(now)

    async def run(self) -> None:
        """Keep the model up to date until the run's feed is closed and everything is read.

        Consumes: the two logs. Produces: the model's versions. Waits for: new events. Unblocked
        by: the feed, or cancellation.
        """
        try:
            await self._follow()
        except (OSError, UnreadableFileError):
            # The view stays at its last state. The hub detects a lost log itself.
            await self._source.feed.wait_closed()
        self.is_over = True

    async def _follow(self) -> None:
        feed = self._source.feed
        while True:
            # Read the flag before the log: if the feed was closed, the read below sees everything.
            is_closed = feed.is_closed
            if await anyio.to_thread.run_sync(self._read_more):
                continue
            if is_closed:
                return
            # Bounded wait: the operational log has no feed that would wake this task.
            with anyio.move_on_after(1.0):
                await feed.wait_for(self._next_seq)
            await anyio.sleep(PAUSE_S)

    def _read_more(self) -> bool:
        operational = self._operational.read_more()
        if operational is not None:
            self._apply(operational.lines())
        block = self._reader.read(self._next_seq, READ_BYTES)
        if block is not None:
            self._apply(block.lines())
            self._next_seq = block.next_seq
        return block is not None or operational is not None

    def _apply(self, lines: Iterable[bytes]) -> None:
        decoded = [_decoded(line) for line in lines]
        with self._lock:
            _apply_all(self._model, decoded)
        for event in decoded:
            if event is not None:
                for listener in self._listeners:
                    listener(event)


def read_run(run_dir: Path) -> ViewModel:
    """Return a view model of all events currently in a run directory."""
    model = ViewModel()
    for path in (run_dir / OPERATIONAL_FILE, find_log(run_dir)):
        _apply_all(model, map(_decoded, _whole_lines(path)))
    return model


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a log; an incomplete last line of an uncompressed log is skipped."""
    if path.is_file() and is_compressed(path):
        yield from read_lines(path)
        return
    log = FollowedLog(path)
    while (block := log.read_more()) is not None:
        yield from block.lines()


def _decoded(line: bytes) -> Event | None:
    try:
        return decode_event(line)
    except EventDecodeError:
        return None  # counted as unreadable and reported in the verdict


def _apply_all(model: ViewModel, events: Iterable[Event | None]) -> None:
    for event in events:
        if event is None:
            model.note_unreadable()
        else:
            model.apply(event)
