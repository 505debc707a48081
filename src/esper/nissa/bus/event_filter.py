"""Which events a client wants: subscriptions, their filter, and summaries of many events."""

from typing import Final

import msgspec

from esper.leyline.errors import UnknownNameError, UsageError
from esper.leyline.live import Subscription
from esper.leyline.telemetry import EventType, Severity
from esper.nissa.storage.blocks import Block

__all__ = ["EventFilter", "Summary", "parse_subscription", "summarize"]


class _Head(msgspec.Struct, gc=False):
    event_type: str
    severity: Severity
    env_id: int | None = None


MAX_ENV_BITS: Final = 256
_TYPE_BITS: Final = {name: 1 << place for place, name in enumerate(EventType.__members__)}
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


class Summary(msgspec.Struct, frozen=True, gc=False):
    """What some events have in common with a filter, without the events: sets as bit masks."""

    types: int = 0
    env_ids: int = 0
    """One bit per env up to a bound; bit 0 is for events without an env, or beyond the bound."""
    max_rank: int = 0
    """The highest severity."""

    def __or__(self, other: "Summary") -> "Summary":
        """Return the summary of both sets of events."""
        return Summary(
            self.types | other.types,
            self.env_ids | other.env_ids,
            max(self.max_rank, other.max_rank),
        )


def summarize(block: Block) -> Summary:
    """Return the summary of a block."""
    types = env_ids = max_rank = 0
    for line in block.lines():
        head = _head_of(line)
        if head is None:
            continue  # no filter passes a line that is not an event
        types |= _TYPE_BITS.get(head.event_type, 0)
        env_ids |= _env_bit(head.env_id)
        max_rank = max(max_rank, head.severity.rank)
    return Summary(types, env_ids, max_rank)


class EventFilter:
    """Selects the events that match a subscription."""

    def __init__(self, subscription: Subscription) -> None:
        self._types = None if subscription.types is None else _known_types(subscription.types)
        self._env_ids = None if subscription.env_ids is None else frozenset(subscription.env_ids)
        self._min_rank = _rank_named(subscription.min_severity)
        self._type_bits = sum(_TYPE_BITS[name] for name in self._types or ())
        self._env_bits = 1
        for env_id in self._env_ids or ():
            self._env_bits |= _env_bit(env_id)
        self.passes_all = self._types is None and self._env_ids is None and self._min_rank == 0

    def passes(self, line: bytes) -> bool:
        """Check whether one event matches; a damaged line matches no filter."""
        head = _head_of(line)
        return (
            head is not None
            and (self._types is None or head.event_type in self._types)
            and (self._env_ids is None or head.env_id is None or head.env_id in self._env_ids)
            and head.severity.rank >= self._min_rank
        )

    def lines(self, block: Block) -> list[bytes]:
        """Return the matching events of a block."""
        lines = block.lines()
        return lines if self.passes_all else [line for line in lines if self.passes(line)]

    def may_match(self, summary: Summary) -> bool:
        """Check whether any of the summarized events may match; False is certain."""
        return (
            (self._types is None or bool(summary.types & self._type_bits))
            and (self._env_ids is None or bool(summary.env_ids & self._env_bits))
            and summary.max_rank >= self._min_rank
        )


def _head_of(line: bytes) -> _Head | None:
    try:
        return _HEAD_DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _env_bit(env_id: int | None) -> int:
    return 1 if env_id is None or not 0 <= env_id < MAX_ENV_BITS else 2 << env_id


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
