"""One websocket connection: hello, one subscription, then events until either side closes."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio
import anyio.lowlevel
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from esper.leyline.errors import UsageError
from esper.leyline.live import (
    CloseCode,
    ErrorFrame,
    Gap,
    Hello,
    ServerMessage,
    Subscription,
)
from esper.leyline.telemetry import SCHEMA_VERSION
from esper.nissa.bus.event_filter import EventFilter, parse_subscription
from esper.nissa.bus.subscribers import LiveSource
from esper.nissa.live.guard import budget_of
from esper.nissa.storage.blocks import Block

__all__ = ["MAX_BAD_MESSAGES", "Session", "Stop"]

MAX_BAD_MESSAGES: Final = 10
SUBSCRIPTION_GRACE_S: Final = 0.25
"""How long streaming is delayed to let the client's subscription arrive first."""
CLOSE_GRACE_S: Final = 1.0
"""Longest wait for a websocket to close, of this protocol and of the page's."""

_ENCODER: Final = msgspec.json.Encoder()


@dataclass(eq=False, slots=True)
class Stop:
    """The end of a server before its run ends: the event, and the code that clients receive."""

    event: anyio.Event = field(default_factory=anyio.Event)
    code: CloseCode = CloseCode.SERVER_STOPS


class Session:
    """Serves one client: one task sends events, one receives, one waits for server shutdown."""

    def __init__(self, websocket: WebSocket, source: LiveSource, stop: Stop) -> None:
        self._websocket = websocket
        self._source = source
        self._stop = stop
        self._budget = budget_of(websocket.scope)
        # Taken when the client connects: a subscription without `since` that arrives a little later
        # must not miss what was emitted meanwhile.
        self._first_seq = source.last_seq + 1
        self._subscriber = source.subscribe(self._first_seq)
        self._filter = EventFilter(Subscription())
        self._is_batched = False
        self._subscribed = anyio.Event()
        self._has_streamed = False
        self._must_acknowledge = False
        self._num_bad_messages = 0
        self._scope = anyio.CancelScope()
        """Covers the whole session; `_end` cancels it."""
        self._turn = anyio.CancelScope()
        """Covers the wait for the next events, so that a late subscription can interrupt it."""
        self._code: CloseCode | None = None
        """The close code to send; None if the client has already disconnected."""

    async def run(self) -> None:
        """Serve until the run ends, the client disconnects or the server stops."""
        try:
            with self._scope:
                await self._send(self._hello())
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._listen)
                    tasks.start_soon(self._end_when_server_stops)
                    await self._stream()
        finally:
            self._source.unsubscribe(self._subscriber)
        if self._code is not None:
            await self._close(self._code)

    async def _close(self, code: CloseCode) -> None:
        # Bounded, because a client that does not read may never receive the close frame.
        with anyio.move_on_after(CLOSE_GRACE_S), contextlib.suppress(WebSocketDisconnect):
            await self._websocket.close(code, code.reason)

    def _end(self, code: CloseCode | None) -> None:
        self._code = code
        self._scope.cancel()

    async def _end_when_server_stops(self) -> None:
        await self._stop.event.wait()
        self._end(self._stop.code)

    @property
    def is_waiting(self) -> bool:
        """Whether the client has not subscribed."""
        return not self._subscribed.is_set()

    def displace(self) -> None:
        """End the session to make room for another client."""
        self._end(CloseCode.TOO_MANY_CONNECTIONS)

    def _hello(self) -> bytes:
        source = self._source
        return _encode(
            Hello(
                run_id=source.run_id,
                schema_version=SCHEMA_VERSION,
                last_seq=source.last_seq,
                is_subscribed=self._subscribed.is_set(),
            )
        )

    # --- Sending ---

    async def _stream(self) -> None:
        # Clients that subscribe at once get no events that they did not ask for; those that never
        # do get everything.
        with anyio.move_on_after(SUBSCRIPTION_GRACE_S):
            await self._subscribed.wait()
        self._has_streamed = True
        while True:
            if self._must_acknowledge:
                self._must_acknowledge = False
                await self._send(self._hello())
            # Only the wait for events is cancelled by a late subscription, never a send.
            with anyio.CancelScope() as self._turn:
                page = await self._next_page()
            if self._turn.cancelled_caught:
                continue
            if page is None:
                return
            await self._send_page(page)

    async def _next_page(self) -> Block | Gap | None:
        try:
            page = await self._subscriber.next()
        except OSError:
            self._end(CloseCode.LOG_UNREADABLE)
            return None
        if page is None:
            is_complete = self._source.feed.is_complete
            self._end(CloseCode.RUN_ENDED if is_complete else CloseCode.LOG_INCOMPLETE)
        return page

    async def _send_page(self, page: Block | Gap) -> None:
        if isinstance(page, Gap):
            await self._send(_encode(page))
        elif self._is_batched and self._filter.passes_all:
            await self._send(page.data)
        else:
            lines = self._filter.lines(page)
            if not lines:
                await self._budget.spend()  # what the client does not pay by reading
            await self._send_lines(lines)

    async def _send_lines(self, lines: Sequence[bytes]) -> None:
        if self._is_batched:
            if lines:
                await self._send(b"\n".join(lines))
            return
        for line in lines:
            await self._send(line)

    async def _send(self, data: bytes) -> None:
        try:
            await self._websocket.send_text(data.decode())
        except WebSocketDisconnect:
            self._end(None)
        # send_text() suspends only under back-pressure. This checkpoint lets other tasks run and
        # delivers the cancellation if the session has ended, e.g. on the lost connection above.
        await anyio.lowlevel.checkpoint()

    # --- Listening ---

    async def _listen(self) -> None:
        while True:
            message = await self._websocket.receive()
            await self._budget.spend()
            if message["type"] == "websocket.disconnect":
                self._end(None)
                return
            try:
                self._subscribe(message.get("text") or message.get("bytes") or b"")
            except UsageError as error:
                await self._complain(str(error))

    def _subscribe(self, text: str | bytes) -> None:
        if self._subscribed.is_set():
            raise UsageError("one subscription per connection; connect again for another")
        subscription = parse_subscription(text)
        self._filter = EventFilter(subscription)
        self._is_batched = subscription.batch
        since = subscription.since
        self._subscriber.rewind(self._first_seq if since is None else since, self._filter)
        self._subscribed.set()
        self._must_acknowledge = True
        # The stream is waiting for events of the old position.
        if self._has_streamed:
            self._turn.cancel()

    async def _complain(self, reason: str) -> None:
        self._num_bad_messages += 1
        await self._send(_encode(ErrorFrame(reason=reason)))
        if self._num_bad_messages >= MAX_BAD_MESSAGES:
            self._end(CloseCode.TOO_MANY_BAD_MESSAGES)


def _encode(message: ServerMessage) -> bytes:
    return _ENCODER.encode(message)
