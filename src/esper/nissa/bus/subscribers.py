"""Live subscribers: their position in the stream, their filters and their gaps."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import anyio.lowlevel
import anyio.to_thread
import msgspec

from esper.leyline.errors import UnknownNameError, UsageError
from esper.leyline.live import Gap, Subscription
from esper.leyline.payloads import SubscriberLagged
from esper.leyline.telemetry import EventType, Severity
from esper.nissa.bus.feed import LiveFeed
from esper.nissa.storage.blocks import Block

__all__ = [
    "EventFilter",
    "LiveSource",
    "LogReader",
    "ReadableLog",
    "Subscriber",
    "parse_subscription",
]

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
                data = whole + newline if newline else data + file.readline()
        block = Block(self._seq, data.count(b"\n"), data)
        self._seq, self._offset = block.next_seq, self._offset + len(data)
        return block


class _Head(msgspec.Struct, gc=False):
    event_type: str
    severity: Severity
    env_id: int | None = None


_HEAD_DECODER: Final = msgspec.json.Decoder(_Head)
_SUBSCRIPTION_DECODER: Final = msgspec.json.Decoder(Subscription)


def parse_subscription(text: str | bytes) -> Subscription:
    """Parse and check a client's subscription; raise UsageError if it is invalid."""
    try:
        subscription = _SUBSCRIPTION_DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageError(f"not a subscription: {error}") from None
    if subscription.since is not None and subscription.since < 0:
        raise UsageError(f"since = {subscription.since}: must not be negative")
    EventFilter(subscription)
    return subscription


class EventFilter:
    """Selects the events that match a subscription."""

    def __init__(self, subscription: Subscription) -> None:
        self._types = None if subscription.types is None else _known_types(subscription.types)
        self._env_ids = None if subscription.env_ids is None else frozenset(subscription.env_ids)
        self._min_rank = _rank_named(subscription.min_severity)
        self.passes_all = self._types is None and self._env_ids is None and self._min_rank == 0

    def passes(self, line: bytes) -> bool:
        """Check whether one event matches."""
        head = _HEAD_DECODER.decode(line)
        return (
            (self._types is None or head.event_type in self._types)
            and (self._env_ids is None or head.env_id is None or head.env_id in self._env_ids)
            and head.severity.rank >= self._min_rank
        )

    def lines(self, block: Block) -> list[bytes]:
        """Return the matching events of a block."""
        lines = block.lines()
        return lines if self.passes_all else [line for line in lines if self.passes(line)]


def _known_types(names: list[str]) -> frozenset[str]:
    for name in names:
        if name not in EventType.__members__:
            raise UnknownNameError("event type", name, EventType.__members__)
    return frozenset(names)


def _rank_named(name: str | None) -> int:
    if name is None:
        return 0
    try:
        return Severity(name).rank
    except ValueError:
        raise UnknownNameError("severity", name, Severity) from None


class LiveSource:
    """What subscribers read from: the log for replay, the feed for new events."""

    def __init__(
        self,
        *,
        run_id: str,
        log: ReadableLog,
        feed: LiveFeed,
        note_lag: Callable[[SubscriberLagged], None],
    ) -> None:
        self.run_id = run_id
        self.log = log
        self.feed = feed
        self.note_lag = note_lag
        self.subscribers: list[Subscriber] = []
        """The subscribers that are connected now."""
        self._numbers = itertools.count(1)

    @property
    def last_seq(self) -> int:
        """Return the seq of the newest event; -1 if there is none yet."""
        return self.feed.next_seq - 1

    def subscribe(self, since: int) -> "Subscriber":
        """Add a subscriber whose first event is `since`."""
        subscriber = Subscriber(self, f"live-{next(self._numbers)}", since)
        self.subscribers.append(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: "Subscriber") -> None:
        """Remove a subscriber."""
        self.subscribers.remove(subscriber)


class Subscriber:
    """A position in the stream: replays from the log until the feed reaches it, then goes live."""

    def __init__(self, source: LiveSource, name: str, since: int) -> None:
        self._source = source
        self._reader = LogReader(source.log)
        self._is_live = False
        self.name = name
        self.next_seq = since
        self.num_delivered = 0
        self.num_dropped = 0
        self.num_bytes = 0

    @property
    def lag(self) -> int:
        """Return the number of events between this subscriber and the end of the stream."""
        return max(self._source.feed.next_seq - self.next_seq, 0)

    def rewind(self, since: int) -> None:
        """Continue with the event `since`, replaying from the log if the feed has dropped it."""
        self.next_seq = since
        self._is_live = False

    async def next(self) -> Block | Gap | None:
        """Wait for the next events or gap; return None at the end of the run."""
        feed = self._source.feed
        while True:
            # Every read below may complete without suspending; let other tasks run regardless.
            await anyio.lowlevel.checkpoint()
            block = feed.read(self.next_seq, PAGE_BYTES)
            if block is not None:
                self._is_live = True
                return self._advance(block)
            if self.next_seq >= feed.oldest_seq:
                if feed.is_closed and self.next_seq >= feed.next_seq:
                    return None
                await feed.wait_for(self.next_seq)
            elif self._is_live:
                return self._skip_to(feed.oldest_seq)
            else:
                block = await anyio.to_thread.run_sync(self._reader.read, self.next_seq)
                # A late subscription may have called rewind() while the thread was reading.
                if block is not None and block.first_seq == self.next_seq:
                    return self._advance(block)

    def _advance(self, block: Block) -> Block:
        self.next_seq = block.next_seq
        self.num_delivered += block.num_events
        self.num_bytes += len(block.data)
        return block

    def _skip_to(self, seq: int) -> Gap:
        gap = Gap(num_dropped=seq - self.next_seq, first_seq=self.next_seq, last_seq=seq - 1)
        self.next_seq = seq
        self.num_dropped += gap.num_dropped
        self._source.note_lag(
            SubscriberLagged(
                subscriber=self.name,
                num_dropped=gap.num_dropped,
                first_dropped_seq=gap.first_seq,
                last_dropped_seq=gap.last_seq,
            )
        )
        return gap
