"""The live protocol: what travels over the websocket beside the events themselves.

The server sends `Hello` first, then frames. A text frame holds one JSON object per line: an event
as it stands in `events.jsonl` (it has `event_type`), or one of the messages below (it has `type`).
The client may send one `Subscription`; without one it gets every event that follows the hello.
"""

import msgspec

__all__ = ["ErrorFrame", "Gap", "Hello", "ServerMessage", "Subscription"]


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="hello"):
    """The first frame: which run this is and how far it has got.

    It is sent once more when a subscription arrives after the first event frame; what follows it
    then obeys the subscription.
    """

    run_id: str
    schema_version: int
    last_seq: int
    """Of the last event in the log; -1 while there is none."""


class Gap(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="gap"):
    """Events that this client was too slow for, counted before its filter; the file has them."""

    num_dropped: int
    first_seq: int
    last_seq: int


class ErrorFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """What the client sent could not be used."""

    reason: str


ServerMessage = Hello | Gap | ErrorFrame
"""Everything the server sends that is not an event."""


class Subscription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client wants to see; None is no restriction."""

    types: list[str] | None = None
    env_ids: list[int] | None = None
    """Events of these envs; events of no env always pass."""
    min_severity: str | None = None
    since: int | None = None
    """First seq wanted: what is in the file from there on is replayed, then it goes live.

    None starts with the first event after the hello.
    """
    batch: bool = False
    """Frames may carry several events, one per line."""
