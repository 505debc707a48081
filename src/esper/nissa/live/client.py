"""The client of the live tail: connects, subscribes, reconnects after an interruption."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect

from esper.leyline.errors import TelemetryLostError, UsageError
from esper.leyline.live import (
    CloseCode,
    ErrorFrame,
    Gap,
    Hello,
    ServerMessage,
    Subscription,
)

__all__ = ["LiveTail", "Notice", "TailItem", "websocket_url"]

_BACKOFFS_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0)
_CONNECT_TIMEOUT_S: Final = 20.0
_MAX_FRAME_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Notice:
    """A message about the connection for the operator."""

    text: str


TailItem: TypeAlias = bytes | Gap | Notice
"""An event's line, a gap, or a message about the connection."""


class _Head(msgspec.Struct, gc=False):
    event_type: str | None = None
    seq: int | None = None


def websocket_url(text: str) -> str:
    """Convert user input (`http://host:port`, `ws://host:port/ws?token=…`) to a websocket URL."""
    parts = urlsplit(text)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.hostname:
        raise UsageError(f"{text}: expected an address such as ws://127.0.0.1:8765/ws")
    path = parts.path if parts.path not in ("", "/") else "/ws"
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


class LiveTail:
    """Yields what a server sends until the run ends; resumes at its position when it reconnects."""

    def __init__(
        self,
        url: str,
        subscription: Subscription,
        *,
        token: str | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = websocket_url(url)
        self._subscription = subscription
        self._headers = {"Authorization": f"Bearer {token}"} if token else None
        self._wait = wait
        self._run_id: str | None = None
        self._next_seq: int | None = subscription.since
        """The seq to resume from after an interruption."""
        self._is_subscribed = False
        """Whether the server has acknowledged this connection's subscription."""
        self._has_seen_end = False
        """Whether RUN_FINISHED was received; a close after it is not an interruption."""

    def items(self) -> Iterator[TailItem]:
        """Yield events, gaps and notices until the server reports the end of the run."""
        num_failures = 0
        while True:
            try:
                with self._connect() as connection:
                    num_failures = 0
                    yield from self._receive(connection)
                    return
            except ConnectionClosed as error:
                if self._has_seen_end:
                    return
                reason = "the connection was lost" if error.rcvd is None else error.rcvd.reason
                self._note_restart(error)
            except (OSError, WebSocketException) as error:
                self._refuse_if_hopeless(error)
                reason = str(error) or type(error).__name__
            if num_failures == len(_BACKOFFS_S):
                raise UsageError(
                    f"{self._shown_url}: gave up after {num_failures} attempts: {reason}"
                )
            delay_s = _BACKOFFS_S[num_failures]
            num_failures += 1
            yield Notice(f"{reason}; trying again in {delay_s:g} s")
            self._wait(delay_s)

    def _note_restart(self, error: ConnectionClosed) -> None:
        """Begin again where the subscription began, if events that were sent no longer hold."""
        if error.rcvd is not None and error.rcvd.code == CloseCode.LOG_RESTARTED:
            self._next_seq = self._subscription.since

    @property
    def _shown_url(self) -> str:
        """Return the URL without its query, which may contain the token."""
        return self._url.partition("?")[0]

    def _connect(self) -> ClientConnection:
        return connect(
            self._url,
            additional_headers=self._headers,
            open_timeout=_CONNECT_TIMEOUT_S,
            max_size=_MAX_FRAME_BYTES,
        )

    def _refuse_if_hopeless(self, error: Exception) -> None:
        """Raise UsageError if a retry cannot succeed: a wrong address or a rejected token."""
        if isinstance(error, InvalidStatus):
            status = error.response.status_code
            way_on = "; give the token of the run with --token" if status in (401, 403) else ""
            raise UsageError(f"{self._shown_url}: refused with status {status}{way_on}") from None
        if isinstance(error, InvalidURI):
            raise UsageError(f"{self._shown_url}: not an address of a live tail") from None
        if self._run_id is None:
            reason = getattr(error, "strerror", None) or str(error) or "no answer"
            raise UsageError(
                f"{self._shown_url}: cannot connect: {reason}; is a run served there (--serve)?"
            ) from None

    def _receive(self, connection: ClientConnection) -> Iterator[TailItem]:
        self._is_subscribed = False
        wanted = msgspec.structs.replace(self._subscription, since=self._next_seq, batch=True)
        connection.send(msgspec.json.encode(wanted).decode())
        try:
            while True:
                frame = connection.recv(decode=False)
                for line in frame.split(b"\n"):
                    if line:
                        yield from self._read(line)
        except ConnectionClosed as error:
            code = None if error.rcvd is None else error.rcvd.code
            if code == CloseCode.LOG_INCOMPLETE:
                last_seq = None if not self._next_seq else self._next_seq - 1
                reason = "the run could not write its last events"
                raise TelemetryLostError(self._shown_url, None, reason, last_seq) from None
            if code != CloseCode.RUN_ENDED:
                raise

    def _read(self, line: bytes) -> Iterator[TailItem]:
        try:
            head = msgspec.json.decode(line, type=_Head)
            if head.event_type is not None:
                if not self._is_subscribed:
                    return  # sent before the server read the subscription; it is sent again
                self._next_seq = None if head.seq is None else head.seq + 1
                self._has_seen_end = head.event_type == "RUN_FINISHED"
                yield line
                return
            message = msgspec.json.decode(line, type=ServerMessage)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield Notice("received a line that is neither an event nor a protocol message")
            return
        match message:
            case Hello():
                yield from self._greet(message)
            case Gap() if self._is_subscribed:
                self._next_seq = message.last_seq + 1
                yield message
            case ErrorFrame():
                raise UsageError(f"{self._shown_url}: {message.reason}")

    def _greet(self, hello: Hello) -> Iterator[TailItem]:
        if self._run_id is not None and self._run_id != hello.run_id:
            yield Notice(f"the server now serves another run: {hello.run_id}")
            self._next_seq = None
        if self._next_seq is None:
            self._next_seq = hello.last_seq + 1
        self._run_id = hello.run_id
        self._is_subscribed = hello.is_subscribed
