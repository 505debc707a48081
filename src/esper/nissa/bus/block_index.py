"""An index over a log: where filtered reading may skip, so that it costs what it returns."""

import threading
from bisect import bisect_left, bisect_right
from typing import Final

import msgspec

from esper.nissa.bus.event_filter import EventFilter, Summary, summarize
from esper.nissa.bus.log_reader import PAGE_BYTES, LogReader, ReadableLog

__all__ = ["BlockIndex", "Span"]

SPAN_BYTES: Final = PAGE_BYTES
"""Size from which a span is complete: 16,000 spans for 1 GB."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """Consecutive events and their summary."""

    first_seq: int
    next_seq: int
    num_bytes: int
    summary: Summary


class BlockIndex:
    """Summaries of a log's spans; every event is summarized once, by the first who needs it."""

    def __init__(self, log: ReadableLog) -> None:
        self._reader = LogReader(log)
        self._spans: list[Span] = []
        self._lock = threading.Lock()

    def catch_up(self) -> None:
        """Summarize everything that was committed since the last call."""
        with self._lock:
            self._catch_up()

    def next_match(self, seq: int, wanted: EventFilter) -> int:
        """Return the first seq, not before `seq`, of a span that may hold a match, or of the end.

        Blocks on file access the first time an event is passed over.
        """
        if wanted.passes_all:
            return seq
        with self._lock:
            self._catch_up()
            place = max(bisect_right(self._spans, seq, key=_first_seq_of) - 1, 0)
            for span in self._spans[place:]:
                if span.next_seq > seq and wanted.may_match(span.summary):
                    return max(seq, span.first_seq)
            return max(seq, self._spans[-1].next_seq) if self._spans else seq

    def last_match(self, before: int, wanted: EventFilter) -> Span | None:
        """Return the last span that begins before `before` and may hold a match; None if none does.

        Blocks on file access the first time an event is passed over.
        """
        with self._lock:
            self._catch_up()
            place = bisect_left(self._spans, before, key=_first_seq_of)
            spans = (self._spans[index] for index in range(place - 1, -1, -1))
            return next((span for span in spans if wanted.may_match(span.summary)), None)

    def _catch_up(self) -> None:
        seq = self._spans[-1].next_seq if self._spans else 0
        while (block := self._reader.read(seq)) is not None:
            span = Span(block.first_seq, block.next_seq, len(block.data), summarize(block))
            last = self._spans[-1] if self._spans else None
            # A live log grows in small blocks: spans are filled before a new one begins.
            if last is not None and last.num_bytes < SPAN_BYTES:
                self._spans[-1] = _joined(last, span)
            else:
                self._spans.append(span)
            seq = block.next_seq


def _joined(one: Span, other: Span) -> Span:
    num_bytes = one.num_bytes + other.num_bytes
    return Span(one.first_seq, other.next_seq, num_bytes, one.summary | other.summary)


def _first_seq_of(span: Span) -> int:
    return span.first_seq
