"""The live protocol: what travels over the websocket beside the events themselves.

The server sends `Hello` first, then frames. A text frame holds one JSON object per line: an event
as it is in `events.jsonl` (it has `event_type`), or one of the messages below (it has `type`).
The client may send one `Subscription`; without one it gets every event that follows the hello.
A subscription is answered by a second hello. What follows that one obeys the subscription; events
that were on their way before it are sent again, so a client that subscribes ignores what comes
between the two. At the end of the run the server closes with a `CloseCode`.
"""

from enum import IntEnum

import msgspec

from esper.leyline.payloads import SubscriberLagged

__all__ = [
    "CloseCode",
    "ErrorFrame",
    "Gap",
    "Hello",
    "LaggedReport",
    "LogEnd",
    "LogPosition",
    "PositionRequest",
    "ServeRequest",
    "ServerCommand",
    "ServerFailure",
    "ServerMessage",
    "ServerReport",
    "Subscription",
]


class CloseCode(IntEnum):
    """Why the server closes a connection: the code of its close frame."""

    RUN_ENDED = 1000
    """Every event was sent, RUN_FINISHED last."""
    SERVER_STOPS = 1001
    TOO_MANY_BAD_MESSAGES = 1008
    LOG_UNREADABLE = 1011
    LOG_RESTARTED = 1012
    """A resumed run has replaced the end of the log; what was sent of it no longer holds."""
    TOO_MANY_CONNECTIONS = 1013
    LOG_INCOMPLETE = 4011
    """The run has ended and could not write its last events (4000 and up are the application's)."""

    @property
    def reason(self) -> str:
        """Return the text that goes with the code."""
        return self.name.lower().replace("_", " ")


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="hello"):
    """The first frame, and the answer to a subscription: which run this is, how far it has got."""

    run_id: str
    schema_version: int
    last_seq: int
    """Of the last event in the log; -1 while there is none."""
    is_subscribed: bool = False
    """It answers a subscription, which what follows obeys."""


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

    None starts with the first event after the first hello.
    """
    batch: bool = False
    """Frames may carry several events, one per line."""


# --- Between a run and the process of its live server: one JSON object per line ------------------


class ServeRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="serve"):
    """The first line to the server's process. The token is not in its arguments, which all see."""

    run_dir: str
    run_id: str
    host: str
    token: str | None
    allowed_origins: tuple[str, ...]


class LogPosition(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="position"):
    """How much of the log is committed. After the first one, each answers a request."""

    num_bytes: int


class LogEnd(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="end"):
    """The run has ended; the last position is the end of its log."""

    is_complete: bool
    """False if the run could not write its last events."""


ServerCommand = ServeRequest | LogPosition | LogEnd


class LaggedReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="lagged"):
    """A subscriber lost events; the run reports it in its operational log."""

    lagged: SubscriberLagged


class PositionRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="next"):
    """The server has read up to the last position and wants the next one."""


class ServerFailure(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="failure"):
    """The last line from a server's process that cannot go on."""

    reason: str


ServerReport = LaggedReport | PositionRequest | ServerFailure
