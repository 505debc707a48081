"""The run's side of its live server's process: starts it, reports the log's growth, ends it.

The run never waits for the server: a task of its own sends the newest position of the log, and a
position that could not be sent is replaced by the next one.
"""

import asyncio
import contextlib
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from esper.leyline.errors import ContractError
from esper.leyline.helper_processes import ended, ending_text, shielded_from_signals
from esper.leyline.live import (
    LaggedReport,
    LogEnd,
    LogPosition,
    PositionRequest,
    ServerCommand,
    ServeRequest,
    ServerFailure,
    ServerReport,
)
from esper.leyline.payloads import LiveServerStopped, Payload
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.bus.subscribers import LiveSource

__all__ = ["run_server_process"]

MODULE: Final = "esper.karn.web.server_child"
END_LIMIT_S: Final = 14.0
"""How long the server may take to send the end of the log to its clients; its own limit is 10 s."""
EXIT_LIMIT_S: Final = 2.0

_DECODER: Final = msgspec.json.Decoder(ServerReport)
_ENCODER: Final = msgspec.json.Encoder()


async def run_server_process(
    listener: socket.socket, request: ServeRequest, hub: TelemetryHub
) -> None:
    """Serve a run in a process of its own until the run has ended.

    Consumes: the hub's feed. Produces: the log's positions; operational events about the server.
    Waits for: the end of the run, then for the process to end. Unblocked by: the feed, the end of
    the process, or a timeout after the end of the run. If the process dies, the run goes on.
    """
    try:
        process, connection = _start(listener)
    except OSError as error:
        reason = error.strerror or str(error)
        _emit(hub, LiveServerStopped(reason=f"it cannot be started: {reason.lower()}"))
        return
    try:
        link = _Link(*await asyncio.open_connection(sock=connection), hub=hub)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(link.send_positions, request, tasks.cancel_scope)
                await link.receive_reports()
                tasks.cancel_scope.cancel()
        finally:
            # Not closed: a server that does not read would keep the run waiting for its last bytes.
            link.writer.transport.abort()
        code = await anyio.to_thread.run_sync(ended, process, EXIT_LIMIT_S)
        # The run has ended and the server with it; every other end is worth an event.
        if not (hub.live.feed.is_closed and code == 0):
            _emit(hub, LiveServerStopped(reason=link.failure or ending_text(code)))
    finally:
        ended(process, 0.0)


def _emit(hub: TelemetryHub, payload: Payload) -> None:
    """Emit an operational event, unless the run has ended: a closed hub takes no events."""
    with contextlib.suppress(ContractError):
        hub.emit(payload)


def _start(listener: socket.socket) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Start the process and give it the listener."""
    ours, theirs = socket.socketpair()
    numbers = (listener.fileno(), theirs.fileno())
    try:
        # The listener is closed on this side: connections must be refused once the server is gone.
        with theirs, listener, shielded_from_signals():
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *map(str, numbers)],
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
    except OSError:
        ours.close()
        raise
    return process, ours


@dataclass(eq=False, slots=True)
class _Link:
    """The connection to the server's process."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    hub: TelemetryHub
    failure: str | None = None
    """Why the server could not go on."""
    _wanted: anyio.Event = field(default_factory=anyio.Event)
    """Whether the server wants another position."""

    async def send_positions(self, request: ServeRequest, scope: anyio.CancelScope) -> None:
        """Send the newest position whenever there is one and the server wants it, and the end.

        Consumes: the hub's feed. Produces: commands. Waits for: new blocks, and for the process to
        ask and to read. Unblocked by: the feed, or cancellation. Cancels `scope` if the end takes
        too long.
        """
        live = self.hub.live
        with contextlib.suppress(ConnectionError):  # the process is gone; the reader notices
            await self._send(request)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_growth, live)
                await live.feed.wait_closed()
                tasks.cancel_scope.cancel()
            await self._send(LogPosition(num_bytes=live.log.num_bytes))
            await self._send(LogEnd(is_complete=live.feed.is_complete))
        await anyio.sleep(END_LIMIT_S)
        scope.cancel()

    async def _send_growth(self, live: LiveSource) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                next_seq = live.feed.next_seq
                await self._send(LogPosition(num_bytes=live.log.num_bytes))
                # Until then, all blocks become one position: neither side wakes for each of them.
                await self._wanted.wait()
                self._wanted = anyio.Event()
                await live.feed.wait_for(next_seq)

    async def _send(self, command: ServerCommand) -> None:
        self.writer.write(_ENCODER.encode(command) + b"\n")
        await self.writer.drain()

    async def receive_reports(self) -> None:
        """Emit what the process reports until it ends, and note what it asks for.

        Consumes: reports. Produces: operational events. Waits for: the process. Unblocked by: the
        process when it reports or ends, or cancellation.
        """
        with contextlib.suppress(ConnectionError):
            while line := await self.reader.readline():
                match _DECODER.decode(line):
                    case PositionRequest():
                        self._wanted.set()
                    case LaggedReport(lagged=lagged):
                        _emit(self.hub, lagged)
                    case ServerFailure(reason=reason):
                        self.failure = reason
