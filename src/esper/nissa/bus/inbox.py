"""The inbox: the bounded queue of numbered drafts between producers and the writer.

`put` costs a lock, a counter and an append. The bound is in bytes: a draft counts as the mean
encoded size of its type so far, because its real size is known only after the writer has encoded
it. Below the bound `put` does not wait. At the bound it blocks a worker thread until the writer
has caught up (back-pressure), but never a thread that runs an event loop; such a producer awaits
the hub's `room()` before it publishes.
"""

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from esper.leyline.errors import ContractError
from esper.leyline.payloads import Payload
from esper.leyline.telemetry import EVENT_SPECS, Channel, Draft

__all__ = ["Entry", "Inbox", "Queue", "Route"]

FIRST_GUESS_BYTES: Final = 512
"""Assumed size for a type of which nothing has been encoded yet."""
MEAN_WEIGHT: Final = 0.05
"""Weight of a new event in the exponential moving average of its type's size."""


@dataclass(eq=False, slots=True)
class Queue:
    """Numbers the events of one channel and holds those that the writer has not taken yet."""

    next_seq: int
    entries: list["Entry"] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Route:
    """The queue for drafts of one payload type, what is written of it, and its mean size."""

    queue: Queue
    event_type: str
    severity: str
    """Unless a draft has one of its own."""
    mean_bytes: float = FIRST_GUESS_BYTES

    def note_size(self, num_bytes: int) -> None:
        """Update the mean with an encoded event's size; only the writer thread calls this."""
        self.mean_bytes += MEAN_WEIGHT * (num_bytes - self.mean_bytes)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A numbered draft that is queued for the writer."""

    seq: int
    ts: float
    draft: Draft
    route: Route
    counted_bytes: float
    """Size charged against the inbox bound until the entry is committed."""


class Inbox:
    """The thread-safe queue between producers and the writer."""

    def __init__(self, *, max_bytes: int, next_seqs: Mapping[Channel, int]) -> None:
        self._max_bytes = max_bytes
        self._queues = {channel: Queue(seq) for channel, seq in next_seqs.items()}
        self._routes: dict[type[Payload], Route] = {
            spec.payload: Route(
                self._queues[spec.channel], spec.event_type.value, spec.severity.value
            )
            for spec in EVENT_SPECS.values()
        }
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Notified on every commit, every sync and on failure."""
        self._queued_bytes = 0.0
        self._is_open = True
        self._is_failed = False
        self._is_sync_asked = False
        self.wakeup = threading.Event()
        """Set to make the writer run now instead of at its next poll."""
        self.num_accepted = 0
        self.num_committed = 0
        self.num_synced = 0
        self.num_lost = 0
        """Events that got a seq but were not written because the log had failed."""

    def put(self, draft: Draft) -> int:
        """Number a draft, queue it and return its seq."""
        route = self._routes[type(draft.payload)]
        queue = route.queue
        # Checked without the lock: the bound is approximate, and most calls are below it.
        if self._queued_bytes >= self._max_bytes and not _is_on_event_loop():
            self.wait_for_room()
        with self._lock:
            if not self._is_open:
                self._refuse()
            # Numbered and queued under one lock, so that the order in the log is the order of the
            # numbers.
            seq = queue.next_seq
            queue.next_seq = seq + 1
            self.num_accepted += 1
            if self._is_failed:
                # The number is given out nevertheless: producers go on as before, and the loss is
                # counted.
                self.num_lost += 1
                return seq
            # Encoding happens on the writer's thread; until then the size is estimated from earlier
            # events of the same type.
            counted = route.mean_bytes
            self._queued_bytes += counted
            queue.entries.append(Entry(seq, time.time(), draft, route, counted))
        return seq

    def _refuse(self) -> None:
        raise ContractError("the hub is closed; emit before it is closed, or open another")

    def next_seq(self, channel: Channel) -> int:
        """Return the seq of the next event of a channel."""
        return self._queues[channel].next_seq

    @property
    def has_room(self) -> bool:
        """Check whether the queue is below its bound; a failed inbox always has room."""
        return self._is_failed or self._queued_bytes < self._max_bytes

    @property
    def num_waiting(self) -> int:
        """Return the number of accepted events that are neither committed nor lost."""
        return self.num_accepted - self.num_committed - self.num_lost

    def wait_for_room(self) -> None:
        """Block until the writer has brought the queue below its bound, or has failed."""
        self.wakeup.set()
        with self._changed:
            while not self.has_room:
                self._changed.wait()

    def wait_synced(self, timeout_s: float | None) -> bool:
        """Request a sync of everything accepted so far and wait; return False on timeout."""
        with self._changed:
            target = self.num_accepted
            self._is_sync_asked = True
            self.wakeup.set()
            return self._changed.wait_for(partial(self._has_synced, target), timeout_s)

    def _has_synced(self, num_events: int) -> bool:
        return self._is_failed or self.num_synced >= num_events

    def close(self) -> None:
        """Reject all further drafts."""
        with self._changed:
            self._is_open = False
        self.wakeup.set()

    # --- The writer's side ---

    def take(self) -> tuple[dict[Channel, list[Entry]], bool]:
        """Take everything queued; also return whether a sync was requested."""
        # Before taking: a wake-up that comes later is about something that may not be taken yet.
        self.wakeup.clear()
        with self._lock:
            entries = {channel: queue.entries for channel, queue in self._queues.items()}
            for queue in self._queues.values():
                queue.entries = []
            is_sync_asked, self._is_sync_asked = self._is_sync_asked, False
        return entries, is_sync_asked

    @property
    def is_drained(self) -> bool:
        """Check whether the inbox is closed and empty."""
        with self._lock:
            return not self._is_open and not any(q.entries for q in self._queues.values())

    def release(self, num_events: int, counted_bytes: float) -> None:
        """Record that events were committed and free their share of the bound."""
        with self._changed:
            self.num_committed += num_events
            self._queued_bytes -= counted_bytes
            self._changed.notify_all()

    def note_synced(self) -> None:
        """Record that everything committed is on disk."""
        with self._changed:
            self.num_synced = self.num_committed
            self._changed.notify_all()

    def fail(self) -> None:
        """Count queued and future events as lost and release all waiting threads."""
        with self._changed:
            self._is_failed = True
            for queue in self._queues.values():
                queue.entries = []
            self._queued_bytes = 0.0
            self.num_lost = self.num_accepted - self.num_committed
            self._changed.notify_all()


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
