"""Live subscribers: their position in the stream and their gaps."""

import itertools
from collections.abc import Callable

import anyio.lowlevel
import anyio.to_thread

from esper.leyline.live import Gap, Subscription
from esper.leyline.payloads import SubscriberLagged
from esper.nissa.bus.block_index import BlockIndex
from esper.nissa.bus.event_filter import EventFilter
from esper.nissa.bus.feed import LiveFeed
from esper.nissa.bus.log_reader import PAGE_BYTES, LogReader, ReadableLog
from esper.nissa.storage.blocks import Block

__all__ = ["LiveSource", "Subscriber"]


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
        self.index = BlockIndex(log)
        """Where filtered reading may skip; costs nothing until it is asked."""
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
        self._wanted = EventFilter(Subscription())
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

    def rewind(self, since: int, wanted: EventFilter) -> None:
        """Continue with the event `since`, replaying from the log if the feed has dropped it.

        A replay skips parts of the log without a match of `wanted`; other events may come.
        """
        self.next_seq = since
        self._wanted = wanted
        self._is_live = False

    async def next(self) -> Block | Gap | None:
        """Wait for the next events or gap; return None at the end of the run."""
        feed = self._source.feed
        while True:
            # Every read below may complete without suspending; let other tasks run regardless.
            await anyio.lowlevel.checkpoint()
            block = feed.read(self.next_seq, PAGE_BYTES)
            if block is not None:
                # From here on the subscriber must keep up: what the feed drops is a gap, and no
                # reason to go back to the log, where it would only fall further behind.
                self._is_live = True
                return self._advance(block)
            if self.next_seq >= feed.oldest_seq:
                if feed.is_closed and self.next_seq >= feed.next_seq:
                    return None
                await feed.wait_for(self.next_seq)
            elif self._is_live:
                return self._skip_to(feed.oldest_seq)
            else:
                seq, wanted = self.next_seq, self._wanted
                page = await anyio.to_thread.run_sync(self._replay, seq, wanted)
                # A late subscription may have called rewind() while the thread was reading.
                if (seq, wanted) != (self.next_seq, self._wanted):
                    continue
                if isinstance(page, Block):
                    return self._advance(page)
                # Nothing up to here matches; a later round of the loop goes on from there, or goes
                # live.
                self.next_seq = page

    def _replay(self, seq: int, wanted: EventFilter) -> Block | int:
        """Return the next page of the log that may match, or the seq up to which none does."""
        match = self._source.index.next_match(seq, wanted)
        return self._reader.read(match) or match

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
