"""uvicorn's protocols with bounds: what one connection may hold, flood and leave unread."""

import asyncio
import contextlib
import socket
import struct
from typing import Any, Final, Protocol

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame
from websockets.protocol import State

from esper.leyline.live import CloseCode
from esper.nissa.live.budget import TokenBucket

__all__ = ["BoundedConnection", "HttpProtocol", "WebSocketProtocol", "cut_off"]

MAX_UNREAD_CLOSE_BYTES: Final = 16 * 1024
"""Unsent bytes beyond which a client that floods gets no close frame."""
MAX_WRITE_BUFFER_BYTES: Final = 512 * 1024
"""Unsent bytes of a websocket beyond one message: control frames that the client does not read."""
REQUEST_GRACE_S: Final = 10.0
"""Longest time that a connection may spend without a request in progress."""
UNREAD_GRACE_S: Final = 10.0
"""Longest time that a client may leave what it was sent unread."""
SLICE_BYTES: Final = 2 * 1024
"""Received bytes that are parsed before the flood check: a frame has six bytes at least."""
FRAMES_PER_S: Final = 50.0
FRAMES_BURST: Final = 200.0
MAX_FRAME_DEBT_S: Final = 1.0
FLOOD_REASON: Final = "too many messages"
MAX_PENDING_MESSAGES: Final = 64
"""Messages that wait for the app, which reads one at a time."""


class BoundedConnection(Protocol):
    """What the server checks and displaces."""

    transport: asyncio.Transport
    unread: "UnreadClock"
    last_active_s: float
    """When the client last completed a request, or sent anything over a websocket."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""


class UnreadClock:
    """Since when a client has read nothing of what it was sent."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._since_s = 0.0

    def note_progress(self) -> None:
        """Start again: the client has read enough for the app to go on."""
        self._num_bytes = 0

    def unread_s(self, num_bytes: int, now_s: float) -> float:
        """Return for how long the number of unsent bytes, as now seen, has not gone down."""
        is_less = num_bytes < self._num_bytes or self._num_bytes == 0
        if num_bytes == 0 or is_less:
            self._since_s = now_s
        self._num_bytes = num_bytes
        return now_s - self._since_s if num_bytes else 0.0


def cut_off(transport: asyncio.Transport) -> None:
    """End a connection at once, together with what the kernel still holds for its client."""
    connection = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):  # the client was faster
        # A linger time of 0 sends a reset and drops the kernel's buffer, which a client that does
        # not read would otherwise hold for minutes.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class HttpProtocol(H11Protocol):
    """uvicorn's HTTP protocol; the server checks its clocks."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register a connection and bound its write buffer."""
        self.unread = UnreadClock()
        self.last_active_s = self.loop.time()
        # The app goes on when all is sent: a connection holds one message or part of an answer.
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def on_response_complete(self) -> None:
        """Start the idle time again after each response."""
        self.last_active_s = self.loop.time()
        super().on_response_complete()

    def resume_writing(self) -> None:
        """Note that the client reads."""
        self.unread.note_progress()
        super().resume_writing()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's websocket protocol; a client that sends more than it may is disconnected."""

    is_idle = False

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.unread = UnreadClock()
        self.last_active_s = self.loop.time()
        self._frames = TokenBucket(FRAMES_PER_S, FRAMES_BURST)
        self._is_flooding = False

    def data_received(self, data: bytes) -> None:
        """Parse received bytes in slices, so that a flood is noticed before it is parsed."""
        self.last_active_s = self.loop.time()
        for start in range(0, len(data), SLICE_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + SLICE_BYTES])
            if self._is_flooding:
                self._end_flood()

    def _count_frame(self) -> None:
        delay_s = self._frames.take(self.loop.time())
        self._is_flooding |= delay_s > MAX_FRAME_DEBT_S
        self._is_flooding |= self.queue.qsize() > MAX_PENDING_MESSAGES

    def _end_flood(self) -> None:
        if self.transport.is_closing():
            return
        code = CloseCode.TOO_MANY_BAD_MESSAGES
        self.queue.put_nowait(
            {"type": "websocket.disconnect", "code": code, "reason": FLOOD_REASON}
        )
        self.close_sent = True
        if self.transport.get_write_buffer_size() > MAX_UNREAD_CLOSE_BYTES:
            cut_off(self.transport)
            return
        # Written here: the library would wait for the client's answer among the rest of its flood.
        payload = struct.pack("!H", code) + FLOOD_REASON.encode()
        self.transport.write(bytes([0x88, len(payload)]) + payload)
        self.transport.close()

    def handle_cont(self, event: Frame) -> None:
        """Handle a part of a message."""
        self._count_frame()
        super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        """Handle a text message or its first part."""
        self._count_frame()
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        """Handle a binary message or its first part."""
        self._count_frame()
        super().handle_bytes(event)

    def send_receive_event_to_app(self) -> None:
        """Pass a message to the app, unless a message before it has ended the connection."""
        if self.conn.state is State.OPEN:
            super().send_receive_event_to_app()
        else:
            self.frames = []

    def handle_ping(self) -> None:
        """Send the pong, unless the client reads none of them."""
        self._count_frame()
        super().handle_ping()
        if self.transport.get_write_buffer_size() > MAX_WRITE_BUFFER_BYTES:
            cut_off(self.transport)

    def handle_pong(self, event: Frame) -> None:
        """Handle a pong."""
        self._count_frame()
        super().handle_pong(event)

    def resume_writing(self) -> None:
        """Note that the client reads."""
        self.unread.note_progress()
        super().resume_writing()
