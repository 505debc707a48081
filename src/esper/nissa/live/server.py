"""The live server: accepts connections, bounds them, and drains them at the end of a run."""

import asyncio
import contextlib
import logging
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

import anyio
import uvicorn
from anyio.abc import TaskStatus
from starlette.applications import Starlette

from esper.leyline.platforms import optional_module
from esper.nissa.bus.subscribers import LiveSource
from esper.nissa.live.address import ServerAddress
from esper.nissa.live.budget import ConnectionBudget, TokenBucket, new_total
from esper.nissa.live.protocols import (
    REQUEST_GRACE_S,
    UNREAD_GRACE_S,
    BoundedConnection,
    HttpProtocol,
    WebSocketProtocol,
    cut_off,
)

__all__ = ["serve"]

MAX_MESSAGE_BYTES: Final = 64 * 1024
MAX_SOCKETS: Final = 256
"""Open connections of every kind."""
MIN_SOCKETS: Final = 16
RESERVED_FILES: Final = 96
"""File descriptors that are not for connections: the log, worker threads, the libraries'."""
MAX_ARRIVALS_PER_S: Final = 100.0
"""Refill rate of the accept token bucket; faster connections wait in the listen backlog."""
ACCEPT_BURST: Final = 200
"""Capacity of the accept token bucket."""
ACCEPT_RETRY_S: Final = 1.0
MAX_HEADER_BYTES: Final = 16 * 1024
CHECK_EVERY_S: Final = 1.0
DISPLACE_AFTER_S: Final = 1.0
"""Idle time after which a connection makes room for a new one."""
PING_EVERY_S: Final = 20.0
STOP_GRACE_S: Final = 1
DRAIN_LOOK_S: Final = 0.05
DRAIN_STALLED_LOOKS: Final = 10
"""Checks without progress (0.5 s) after which the drain at the end of a run gives up."""
DRAIN_LIMIT_S: Final = 10.0
"""Longest drain at the end of a run, even if clients are still reading."""
ASYNCIO_LOG: Final = logging.getLogger("asyncio")


class _Server(uvicorn.Server):
    """A uvicorn server that installs no signal handlers and limits its accept rate."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, arrivals: TokenBucket):
        super().__init__(config)
        self._listener = listener
        self._arrivals = arrivals
        self._total = new_total()
        self._max_sockets = _max_sockets()

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
            tasks.start_soon(self._check)
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
                if self._make_room(loop.time()):
                    await loop.connect_accepted_socket(self._build_protocol, connection)
                else:
                    connection.close()
            except OSError:  # the client has disconnected, or no file descriptor is left
                await anyio.sleep(ACCEPT_RETRY_S)
            await anyio.sleep(self._arrivals.take(loop.time()))

    def _make_room(self, now_s: float) -> bool:
        """Displace the connection that has been idle for longest, if there is no room.

        Requests in progress are displaced as well, after all idle connections: clients that read
        a response byte by byte must not keep others out. Websockets have a limit of their own.
        """
        if len(self._connections) < self._max_sockets:
            return True
        others = [one for one in self._connections if not isinstance(one, WebSocketProtocol)]
        oldest = min(others, key=_displacement_order, default=None)
        if oldest is None or now_s - oldest.last_active_s < DISPLACE_AFTER_S:
            return False
        cut_off(oldest.transport)
        # Closed in the loop's next turn, one turn too late for the count.
        self.server_state.connections.discard(oldest)
        return True

    def _build_protocol(self) -> asyncio.Protocol:
        return HttpProtocol(
            config=self.config,
            server_state=self.server_state,
            app_state={"budget": ConnectionBudget(self._total)},
        )

    @property
    def _connections(self) -> list[BoundedConnection]:
        return list(self.server_state.connections)  # type: ignore[arg-type]

    async def _check(self) -> None:
        """End connections that have no request, or leave their response unread, for too long.

        Consumes: the connections' clocks. Produces: aborted connections. Waits for: the clock.
        Unblocked by: cancellation when the server stops.
        """
        while True:
            await anyio.sleep(CHECK_EVERY_S)
            now_s = anyio.current_time()
            for one in self._connections:
                num_bytes = one.transport.get_write_buffer_size()
                unread_s = one.unread.unread_s(num_bytes, now_s)
                idle_s = now_s - one.last_active_s if one.is_idle else 0.0
                if unread_s > UNREAD_GRACE_S or (idle_s > REQUEST_GRACE_S and not num_bytes):
                    cut_off(one.transport)

    async def drain(self, source: LiveSource, is_settled: Callable[[], bool]) -> None:
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
            # A server that has yet to prepare the end cannot blame its clients for the pause.
            is_stalled = progress == before and is_settled()
            num_stalled = num_stalled + 1 if is_stalled else 0
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
        return (
            bool(state.tasks)
            or self._has_arrivals
            or any(isinstance(connection, WebSocketProtocol) for connection in state.connections)
        )

    @property
    def _has_arrivals(self) -> bool:
        """Whether clients have connected that were not accepted yet."""
        return bool(select.select([self._listener], [], [], 0.0)[0])

    def _progress(self, source: LiveSource) -> tuple[int, ...]:
        """Return a value that changes whenever any client makes progress."""
        state = self.server_state
        num_bytes = sum(subscriber.num_bytes for subscriber in source.subscribers)
        return state.total_requests, len(state.tasks), len(state.connections), num_bytes


def _displacement_order(connection: BoundedConnection) -> tuple[bool, float]:
    return not connection.is_idle, connection.last_active_s


def _max_sockets() -> int:
    resource: Any = optional_module("resource")
    soft = -1 if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_SOCKETS if soft < 0 else min(MAX_SOCKETS, max(soft - RESERVED_FILES, MIN_SOCKETS))


def _always() -> bool:
    return True


async def serve(
    app: Starlette,
    listener: socket.socket,
    *,
    is_settled: Callable[[], bool] = _always,
    max_arrivals_per_s: float = MAX_ARRIVALS_PER_S,
    task_status: TaskStatus[ServerAddress] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an app as a task until its run has ended or the task is cancelled.

    At the end of a run, clients that keep reading first receive all remaining events.

    Consumes: connections. Produces: the bound address, responses and frames. Waits for: the end
    of the run. Unblocked by: the run's feed, or cancellation. Closes the listener.

    Args:
        app: the routes of a run.
        listener: bound already.
        is_settled: returns whether everything that follows the log has read its end.
        max_arrivals_per_s: connections that are accepted per second.
        task_status: gets the bound address, once listening.
    """
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws=WebSocketProtocol,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_EVERY_S,
        ws_ping_timeout=PING_EVERY_S,
        lifespan="off",
        # No access log: a request's URL may contain the token. No warnings or errors either:
        # nothing that a client sends may reach the operator's terminal.
        log_config=None,
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=STOP_GRACE_S,
        server_header=False,
    )
    server = _Server(config, listener, TokenBucket(max_arrivals_per_s, ACCEPT_BURST))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run_shielded, server, listener)
        task_status.started(ServerAddress(*listener.getsockname()[:2]))
        try:
            source: LiveSource | None = app.state.source
            if source is None:  # an app of several runs, which ends with none of them
                await anyio.sleep_forever()
            else:
                await source.feed.wait_closed()
                await server.drain(source, is_settled)
        finally:
            app.state.stop.event.set()
            server.should_exit = True


async def _run_shielded(server: _Server, listener: socket.socket) -> None:
    # Shielded: cancelling `serve` must not cancel uvicorn, which would drop its clients. It exits
    # on its own after `should_exit` is set.
    loop = asyncio.get_running_loop()
    previous, level = loop.get_exception_handler(), ASYNCIO_LOG.level
    loop.set_exception_handler(_note_quietly)
    # It would warn of every write to a connection that its client has reset.
    ASYNCIO_LOG.setLevel(logging.CRITICAL)
    try:
        with anyio.CancelScope(shield=True), listener:
            await server.serve()
    finally:
        loop.set_exception_handler(previous)
        ASYNCIO_LOG.setLevel(level)


def _note_quietly(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # asyncio would print a traceback and end the connection; it still ends the connection.
    error = context.get("exception")
    logging.getLogger(__name__).debug("a connection failed: %s", context, exc_info=error)
