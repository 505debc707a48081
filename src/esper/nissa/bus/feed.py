"""The feed: the newest blocks of a run, shared by all live subscribers.

The writer appends each block once, regardless of the number of subscribers. A subscriber is only a
position, so a slow or stalled one does not slow the run: the feed keeps a bounded number of bytes
and drops the oldest blocks. A subscriber that falls behind computes its exact gap from the seqs.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import anyio

from esper.nissa.storage.blocks import Block

__all__ = ["FEED_BYTES", "LiveFeed"]

FEED_BYTES: Final = 1024 * 1024
"""How many bytes a live subscriber may lag behind before it loses events."""


class LiveFeed:
    """A bounded window on the end of the log. One thread publishes, any event loop reads."""

    def __init__(self, *, next_seq: int, max_bytes: int = FEED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._blocks: deque[Block] = deque()
        self._num_bytes = 0
        self._waiting: dict[anyio.Event, asyncio.AbstractEventLoop] = {}
        self._waiting_for_close: dict[anyio.Event, asyncio.AbstractEventLoop] = {}
        self.next_seq = next_seq
        """The seq after the newest event."""
        self.is_closed = False
        """Whether the feed has ended; no further block will be published."""
        self.is_complete = True
        """False if the run emitted events that could not be written."""

    @property
    def oldest_seq(self) -> int:
        """Return the first seq in the feed; older events are only in the log file."""
        with self._lock:
            return self._blocks[0].first_seq if self._blocks else self.next_seq

    def publish(self, block: Block) -> None:
        """Append a block that has been written to the log, and wake waiting subscribers."""
        with self._lock:
            self._blocks.append(block)
            self._num_bytes += len(block.data)
            # The newest block always stays, however large: otherwise it could not be read live.
            while self._num_bytes > self._max_bytes and len(self._blocks) > 1:
                self._num_bytes -= len(self._blocks.popleft().data)
            self.next_seq = block.next_seq
        self._wake()

    def close(self, *, is_complete: bool = True) -> None:
        """End the stream; subscribers can still read the blocks that remain in the feed."""
        with self._lock:
            self.is_complete = is_complete
            self.is_closed = True
            waiting, self._waiting_for_close = self._waiting_for_close, {}
        self._wake()
        _set_from_any_thread(waiting)

    def read(self, seq: int, max_bytes: int) -> Block | None:
        """Return about `max_bytes` of events starting at `seq`; None if the feed lacks it."""
        with self._lock:
            blocks = self._blocks_from(seq, max_bytes)
        if not blocks:
            return None
        num_events = sum(block.num_events for block in blocks)
        joined = Block(blocks[0].first_seq, num_events, b"".join(block.data for block in blocks))
        return joined.from_seq(seq)

    def _blocks_from(self, seq: int, max_bytes: int) -> list[Block]:
        if not self._blocks or seq < self._blocks[0].first_seq:
            return []
        blocks: list[Block] = []
        num_bytes = 0
        # Search backwards from the newest block, because most subscribers are near the end.
        for block in reversed(self._blocks):
            if block.next_seq <= seq:
                break
            blocks.append(block)
        blocks.reverse()
        for index, block in enumerate(blocks):
            num_bytes += len(block.data)
            if num_bytes >= max_bytes:
                return blocks[: index + 1]
        return blocks

    async def wait_for(self, seq: int) -> None:
        """Wait until the event `seq` has been published, or the feed is closed."""
        while True:
            event = anyio.Event()
            with self._lock:
                # Checked under the lock that `publish` takes, or a block could slip in between
                # check and wait.
                if self.next_seq > seq or self.is_closed:
                    return
                self._waiting[event] = asyncio.get_running_loop()
            try:
                await event.wait()
            finally:
                with self._lock:
                    self._waiting.pop(event, None)

    async def wait_closed(self) -> None:
        """Wait until the feed is closed; published blocks do not wake the waiting task."""
        event = anyio.Event()
        with self._lock:
            if self.is_closed:
                return
            self._waiting_for_close[event] = asyncio.get_running_loop()
        try:
            await event.wait()
        finally:
            with self._lock:
                self._waiting_for_close.pop(event, None)

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        _set_from_any_thread(waiting)


def _set_from_any_thread(waiting: Mapping[anyio.Event, asyncio.AbstractEventLoop]) -> None:
    for loop in set(waiting.values()):
        events = [event for event, its_loop in waiting.items() if its_loop is loop]
        # Setting an anyio event is not thread-safe, so it happens on the loop of its waiter. A
        # loop that has been closed since raises RuntimeError and has no task left to wake.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_set_all, events)


def _set_all(events: Iterable[anyio.Event]) -> None:
    for event in events:
        event.set()
