"""The dashboard's routes on the live server: the page, its files, and the stream of patches."""

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.lowlevel
import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from esper.karn.view.snapshot import patch_parts
from esper.karn.view.view_feed import ViewFeed
from esper.karn.view.view_model import START
from esper.karn.web.page import (
    MEDIA_TYPES,
    Asset,
    address_of,
    asset,
    live_page,
    script_policy,
)
from esper.leyline.live import CloseCode
from esper.nissa.live.budget import ConnectionBudget
from esper.nissa.live.guard import budget_of
from esper.nissa.live.sending import PART_BYTES
from esper.nissa.live.session import CLOSE_GRACE_S, Stop
from esper.nissa.live.visitors import Visitors

__all__ = ["ViewRequest", "asset_route", "dashboard_routes"]

PATCH_EVERY_S: Final = 0.25
HEARTBEAT_S: Final = 2.0
"""Interval of patches without changes, by which the page detects that the server is alive."""
MAX_VIEWERS: Final = 64
MAX_BAD_MESSAGES: Final = 10
PATCH_UNITS: Final = 10.0
"""Cost of a patch that is sent because the viewer asked, in units of the connection's budget."""
ROUNDS_PER_MESSAGE: Final = 32
"""Of 2 KiB each: the view of a long run has a megabyte."""
SEEDS_PER_MESSAGE: Final = 128
"""Of 250 bytes each."""
_FOREVER: Final = "max-age=31536000, immutable"
_ENCODER: Final = msgspec.json.Encoder()


class ViewRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A viewer's message: the env whose detail it shows, or None."""

    select: int | None


_REQUEST_DECODER: Final = msgspec.json.Decoder(ViewRequest)


def dashboard_routes(feed: ViewFeed, run_dir: Path, base: str = "") -> list[BaseRoute]:
    """Return the routes of the dashboard, for `nissa.live.app.build_app(routes=…)`.

    Args:
        feed: the view of the run.
        run_dir: the run directory, for the command that serves the dashboard again.
        base: path below which the server has the routes of this run.
    """
    dashboard = _Dashboard(feed, run_dir, base)
    return [Route("/", dashboard.page), asset_route(), WebSocketRoute("/ws/view", dashboard.view)]


def asset_route() -> BaseRoute:
    """Return the route of the page's files."""
    return Route("/assets/{name}", _file)


async def _file(request: Request) -> Response:
    """Return one of the page's files; versioned URLs are immutable and cached."""
    name = request.path_params["name"]
    found = asset(name)
    if found is None:
        return PlainTextResponse("no such file\n", status_code=404)
    is_versioned = request.query_params.get("v") == found.version
    headers = {
        "Cache-Control": f"public, {_FOREVER}" if is_versioned else "no-cache",
        "ETag": f'"{found.version}"',
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]
    headers["Content-Length"] = str(found.num_bytes)
    return _FileResponse(_chunks(found), media_type=media_type, headers=headers)


@dataclass(eq=False, slots=True)
class _Dashboard:
    """State shared by the routes."""

    feed: ViewFeed
    run_dir: Path
    base: str
    visitors: Visitors = field(default_factory=lambda: Visitors(MAX_VIEWERS))

    async def page(self, _: Request) -> Response:
        """Return the page; the URLs of its files contain their version."""
        page = live_page(address_of, self.run_dir, self.base)
        headers = {"Content-Security-Policy": script_policy(page.import_map)}
        return Response(page.html, media_type="text/html; charset=utf-8", headers=headers)

    async def view(self, websocket: WebSocket) -> None:
        """Serve one viewer."""
        await websocket.accept()
        now_s = anyio.current_time()
        if not self.visitors.make_room(now_s):
            await websocket.close(CloseCode.TOO_MANY_CONNECTIONS, "too many viewers")
            return
        viewer = _Viewer(websocket, self.feed, budget_of(websocket.scope))
        self.visitors.add(viewer, now_s)
        try:
            await viewer.run()
        finally:
            self.visitors.leave(viewer)


class _FileResponse(StreamingResponse):
    """Sends parts in the task of the request; two more per connection would take 7 KiB."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send; uvicorn discards what is sent to a client that has left."""
        await self.stream_response(send)


async def _chunks(found: Asset) -> AsyncIterator[bytes]:
    """Yield a file in parts, so that no connection holds all of it in its write buffer."""
    for start in range(0, found.num_bytes, PART_BYTES):
        yield found.part(start, PART_BYTES)
        # Sending does not suspend while the kernel takes everything, or after a reset.
        await anyio.lowlevel.checkpoint()


@dataclass(eq=False, slots=True)
class _Viewer:
    """One connected page: sends the whole view, then patches, at most four per second.

    A slow client gets fewer and larger patches, because nothing is queued for it.
    """

    websocket: WebSocket
    feed: ViewFeed
    budget: ConnectionBudget
    selected_env: int | None = None
    _version: int = START
    _sent_at: float = 0.0
    _num_bad_messages: int = 0
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _asked: anyio.Event = field(default_factory=anyio.Event)
    """Set when the viewer selects an env, to send its detail without delay."""
    _code: CloseCode | None = None
    """The close code to send; None if the viewer has already disconnected."""

    async def run(self) -> None:
        """Serve until the run ends, the viewer disconnects or the server stops."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen)
                tasks.start_soon(self._end_when_server_stops)
                await self._stream()
        if self._code is not None:
            # Bounded, because a client that does not read may never receive the close frame.
            with anyio.move_on_after(CLOSE_GRACE_S), contextlib.suppress(WebSocketDisconnect):
                await self._send_patch()
                await self.websocket.close(self._code, self._code.reason)

    def _end(self, code: CloseCode | None) -> None:
        self._code = code
        self._scope.cancel()

    async def _end_when_server_stops(self) -> None:
        stop: Stop = self.websocket.app.state.stop
        await stop.event.wait()
        self._end(stop.code)

    @property
    def is_waiting(self) -> bool:
        """Whether no env is selected."""
        return self.selected_env is None

    def displace(self) -> None:
        """End the connection to make room for another viewer."""
        self._end(CloseCode.TOO_MANY_CONNECTIONS)

    async def _stream(self) -> None:
        while True:
            if self.feed.is_over:
                self._end(CloseCode.RUN_ENDED)  # with the last patch
            is_due = anyio.current_time() - self._sent_at >= HEARTBEAT_S
            if self._asked.is_set():
                # Charged only for patches that the viewer asks for; those by the clock are bounded
                # already.
                await self.budget.spend(PATCH_UNITS)
            if self._version < self.feed.version or self._asked.is_set() or is_due:
                await self._send_patch()
            with anyio.move_on_after(PATCH_EVERY_S):
                await self._asked.wait()

    async def _send_patch(self) -> None:
        # A new event before the patch is made: a request that arrives meanwhile is not lost.
        self._asked = anyio.Event()
        # Made when it can be sent, not before: a client that reads slowly gets one large patch
        # later.
        patch = self.feed.patch(self._version, time.time(), self.selected_env)
        try:
            for part in patch_parts(patch, ROUNDS_PER_MESSAGE, SEEDS_PER_MESSAGE):
                await self.websocket.send_text(_ENCODER.encode(part).decode())
                await anyio.lowlevel.checkpoint()  # as sending need not suspend
        except WebSocketDisconnect:
            self._end(None)
        self._version = patch.version
        self._sent_at = anyio.current_time()

    async def _listen(self) -> None:
        while True:
            message = await self.websocket.receive()
            await self.budget.spend()
            if message["type"] == "websocket.disconnect":
                self._end(None)
                return
            try:
                text = message.get("text") or message.get("bytes") or b""
                request = _REQUEST_DECODER.decode(text)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                self._num_bad_messages += 1
                if self._num_bad_messages >= MAX_BAD_MESSAGES:
                    self._end(CloseCode.TOO_MANY_BAD_MESSAGES)
                    return
                continue
            self.selected_env = request.select
            self._asked.set()
