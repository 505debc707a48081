"""The live server: the websocket tail, the log over HTTP, and pages that other packages add."""

import asyncio
import contextlib
import random
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import anyio
import anyio.to_thread
import orjson
import uvicorn
from anyio.abc import TaskStatus
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from esper.leyline.errors import UsageError
from esper.leyline.live import CloseCode, Subscription
from esper.nissa.bus.event_filter import EventFilter
from esper.nissa.bus.log_reader import LogReader
from esper.nissa.bus.subscribers import LiveSource
from esper.nissa.live.security import Guard, Security
from esper.nissa.live.session import Session
from esper.nissa.storage.run_directory import MANIFEST_FILE

__all__ = ["ServerAddress", "build_app", "listen", "serve"]

MAX_MESSAGE_BYTES: Final = 64 * 1024
MAX_CONNECTIONS: Final = 128
MAX_SOCKETS: Final = 2 * MAX_CONNECTIONS
"""Open connections of every kind; leaves file descriptors for the run itself."""
MAX_ARRIVALS_PER_S: Final = 20.0
"""Refill rate of the accept token bucket; faster connections wait in the listen backlog."""
ACCEPT_BURST: Final = 64
"""Capacity of the accept token bucket: ten browsers, or a dozen dashboards that reconnect."""
ACCEPT_RETRY_S: Final = 1.0
MAX_HEADER_BYTES: Final = 16 * 1024
REQUEST_GRACE_S: Final = 5.0
"""Interval of the idle check: idle at two checks in a row closes a connection."""
PING_EVERY_S: Final = 20.0
STOP_GRACE_S: Final = 1
DRAIN_LOOK_S: Final = 0.05
DRAIN_STALLED_LOOKS: Final = 10
"""Checks without progress (0.5 s) after which the drain at the end of a run gives up."""
DRAIN_LIMIT_S: Final = 10.0
"""Longest drain at the end of a run, even if clients are still reading."""
DEFAULT_EVENTS: Final = 1_000
MAX_EVENTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address a server listens on; port 0 lets the operating system choose a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `HOST:PORT`; an IPv6 host is written in brackets."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise UsageError(f"address {text!r}: expected HOST:PORT, such as 127.0.0.1:8765")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(eq=False, slots=True)
class _Service:
    """State shared by the routes of one app."""

    source: LiveSource
    run_dir: Path
    max_connections: int
    stopping: anyio.Event = field(default_factory=anyio.Event)
    num_connections: int = 0

    async def websocket(self, websocket: WebSocket) -> None:
        """Serve one client of the live tail."""
        await websocket.accept()
        if self.num_connections >= self.max_connections:
            await websocket.close(CloseCode.TOO_MANY_CONNECTIONS, "too many connections")
            return
        self.num_connections += 1
        try:
            await Session(websocket, self.source, self.stopping).run()
        finally:
            self.num_connections -= 1

    async def health(self, _: Request) -> Response:
        """Return the server's status and the seq of the newest event."""
        answer = {"status": "ok", "last_seq": self.source.last_seq}
        return Response(orjson.dumps(answer), media_type="application/json")

    async def manifest(self, _: Request) -> Response:
        """Return `run.json`."""
        try:
            data = await anyio.Path(self.run_dir / MANIFEST_FILE).read_bytes()
        except OSError:
            return PlainTextResponse("this run has no manifest\n", status_code=404)
        return Response(data, media_type="application/json")

    async def events(self, request: Request) -> Response:
        """Return events from the log as newline-delimited JSON."""
        try:
            wanted = _EventQuery.parse(request)
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", status_code=400)
        try:
            lines = await anyio.to_thread.run_sync(wanted.read, self.source)
        except OSError:
            return PlainTextResponse("the log cannot be read\n", status_code=503)
        body = b"".join(line + b"\n" for line in lines)
        return Response(body, media_type="application/x-ndjson")


@dataclass(frozen=True, kw_only=True, slots=True)
class _EventQuery:
    """The parsed query of `/api/events?since=&types=&env=&limit=`."""

    since: int
    limit: int
    wanted: EventFilter

    @classmethod
    def parse(cls, request: Request) -> Self:
        query = request.query_params
        types = query.get("types")
        env = _number(request, "env")
        subscription = Subscription(
            types=types.split(",") if types else None, env_ids=None if env is None else [env]
        )
        limit = _number(request, "limit")
        return cls(
            since=_number(request, "since") or 0,
            limit=min(DEFAULT_EVENTS if limit is None else limit, MAX_EVENTS),
            wanted=EventFilter(subscription),
        )

    def read(self, source: LiveSource) -> list[bytes]:
        """Read the log; blocks on file access, so call it from a worker thread."""
        reader, seq = LogReader(source.log), self.since
        lines: list[bytes] = []
        while len(lines) < self.limit and (block := reader.read(seq)) is not None:
            lines += self.wanted.lines(block)
            seq = block.next_seq
        return lines[: self.limit]


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if not text:
        return None
    # Reject numbers that do not fit into a 64-bit seq before they are used in arithmetic.
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise UsageError(f"{name} = {text[:40]!r}: expected a non-negative integer")
    return int(text)


def build_app(
    *,
    source: LiveSource,
    run_dir: Path,
    security: Security,
    routes: Sequence[BaseRoute] = (),
    max_connections: int = MAX_CONNECTIONS,
) -> Starlette:
    """Build the ASGI app of one run; `routes` are additional pages behind the same guard."""
    service = _Service(source=source, run_dir=run_dir, max_connections=max_connections)
    app = Starlette(
        routes=[
            WebSocketRoute("/ws", service.websocket),
            Route("/healthz", service.health),
            Route("/api/run", service.manifest),
            Route("/api/events", service.events),
            *routes,
        ],
        middleware=[Middleware(Guard, security=security)],
    )
    app.state.source = source
    app.state.stopping = service.stopping
    return app


class _WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's websocket protocol; its keepalive pings do not advance the global `random`."""

    def send_keepalive_ping(self) -> None:
        """Send a ping and restore `random`, from which uvicorn draws the ping's payload."""
        state = random.getstate()
        super().send_keepalive_ping()
        random.setstate(state)


@dataclass(eq=False, slots=True)
class _TokenBucket:
    """A token bucket that limits how fast connections are accepted, to protect the run's CPU."""

    per_s: float
    num_left: float = ACCEPT_BURST
    last_s: float = 0.0

    def wait_after_one(self, now_s: float) -> float:
        """Take a token for a connection accepted now; return the delay until the next accept."""
        earned = self.per_s * (now_s - self.last_s)
        self.num_left, self.last_s = min(self.num_left + earned, ACCEPT_BURST) - 1.0, now_s
        return max(0.0, (1.0 - self.num_left) / self.per_s)


class _HttpProtocol(H11Protocol):
    """uvicorn's HTTP protocol with a timeout for connections that never complete a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register a connection and schedule its first idle check."""
        super().connection_made(transport)
        self.loop.call_later(REQUEST_GRACE_S, self._look, False)

    def _look(self, was_idle: bool) -> None:
        """Close a connection that had no request in progress at two checks in a row."""
        if self not in self.connections:
            return
        is_idle = self.cycle is None or self.cycle.response_complete
        if was_idle and is_idle:
            self.transport.abort()
        else:
            self.loop.call_later(REQUEST_GRACE_S, self._look, is_idle)


class _Server(uvicorn.Server):
    """A uvicorn server that installs no signal handlers and limits its accept rate."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, arrivals: _TokenBucket):
        super().__init__(config)
        self._listener = listener
        self._arrivals = arrivals

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers: the supervisor handles signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start without a listener: uvicorn itself would accept without a rate limit."""
        await super().startup(sockets=[])

    async def main_loop(self) -> None:
        """Accept connections for as long as the server runs."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._let_in)
            await super().main_loop()
            tasks.cancel_scope.cancel()

    async def _let_in(self) -> None:
        """Accept connections one at a time, at the rate the token bucket allows.

        Consumes: connections. Produces: a protocol for each. Waits for: the next connection, and
        for a token before each accept; until then the connection stays in the listen backlog and
        uses no CPU time of this process. Unblocked by: clients, and cancellation when the server
        stops.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
                if len(self.server_state.connections) < MAX_SOCKETS:
                    await loop.connect_accepted_socket(self._build_protocol, connection)
                else:
                    connection.close()
            except OSError:  # the client has disconnected, or no file descriptor is left
                await anyio.sleep(ACCEPT_RETRY_S)
            await anyio.sleep(self._arrivals.wait_after_one(loop.time()))

    def _build_protocol(self) -> asyncio.Protocol:
        return _HttpProtocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def drain(self, source: LiveSource) -> None:
        """Wait until clients have read the rest of a finished run; abort those that do not read.

        Consumes: the closed feed. Produces: nothing; the sessions send. Waits for: pending
        requests and for websockets to be closed by both sides. Unblocked by: the clients, or a
        timeout once no client makes progress.
        """
        deadline_s = anyio.current_time() + DRAIN_LIMIT_S
        num_stalled, progress = 0, self._progress(source)
        while self._is_busy and anyio.current_time() < deadline_s:
            await anyio.sleep(DRAIN_LOOK_S)
            before, progress = progress, self._progress(source)
            num_stalled = num_stalled + 1 if progress == before else 0
            if num_stalled == DRAIN_STALLED_LOOKS:
                break
        for connection in list(self.server_state.connections):
            # close() would wait until the client has read the write buffer. Connections with an
            # empty write buffer need no abort: their data is in the kernel's socket buffer, which
            # the client can still read after the server has exited.
            if connection.transport.get_write_buffer_size():
                connection.transport.abort()

    @property
    def _is_busy(self) -> bool:
        state = self.server_state
        return bool(state.tasks) or any(
            isinstance(connection, _WebSocketProtocol) for connection in state.connections
        )

    def _progress(self, source: LiveSource) -> tuple[int, ...]:
        """Return a value that changes whenever any client makes progress."""
        state = self.server_state
        num_bytes = sum(subscriber.num_bytes for subscriber in source.subscribers)
        return state.total_requests, len(state.tasks), len(state.connections), num_bytes


async def serve(
    app: Starlette,
    address: ServerAddress,
    *,
    listener: socket.socket | None = None,
    max_arrivals_per_s: float = MAX_ARRIVALS_PER_S,
    task_status: TaskStatus[ServerAddress] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an app as a task until its run has ended or the task is cancelled.

    At the end of a run, clients that keep reading first receive all remaining events.

    Consumes: connections. Produces: the bound address, once listening. Waits for: the end of the
    run. Unblocked by: the run's feed, or cancellation. Pass a `listener` bound earlier to detect
    an address in use before any file of the run is created.
    """
    listener = listener or listen(address)
    config = uvicorn.Config(
        app,
        http=_HttpProtocol,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws=_WebSocketProtocol,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_EVERY_S,
        ws_ping_timeout=PING_EVERY_S,
        lifespan="off",
        # No access log: a request's URL may contain the token. No warnings either: a client that
        # sends malformed requests must not flood the operator's terminal.
        log_config=None,
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=STOP_GRACE_S,
        server_header=False,
    )
    server = _Server(config, listener, _TokenBucket(max_arrivals_per_s))
    bound = ServerAddress(address.host, listener.getsockname()[1])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run_shielded, server, listener)
        task_status.started(bound)
        try:
            await app.state.source.feed.wait_closed()
            await server.drain(app.state.source)
        finally:
            app.state.stopping.set()
            server.should_exit = True


async def _run_shielded(server: _Server, listener: socket.socket) -> None:
    # Shielded: cancelling `serve` must not cancel uvicorn, which would drop its clients. It exits
    # on its own after `should_exit` is set.
    with anyio.CancelScope(shield=True), listener:
        await server.serve()


def listen(address: ServerAddress) -> socket.socket:
    """Bind an address and return the listening socket; raise UsageError if that fails."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets whose protocol is IPPROTO_TCP. Without it, Nagle's
    # algorithm delays every other frame by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)  # required by loop.sock_accept
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot serve on {address}: {reason}; choose another with --serve HOST:PORT"
        ) from None
    return listener
