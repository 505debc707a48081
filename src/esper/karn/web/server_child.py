"""The process of a run's live server: no visitor of it can reach the run itself.

Started by `server_process.py` with two inherited sockets: the listener, and a connection to the
run. It reads the run directory like any other process; the run only reports how much of the log is
committed. It ends with the run, however that ends, and ignores the signals that are meant for it.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import msgspec

from esper.karn.view.followed_log import open_source, publish_up_to
from esper.karn.web.run_server import RunServer
from esper.leyline.heap import share_one_heap
from esper.leyline.helper_processes import yield_to_run
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
from esper.leyline.payloads import SubscriberLagged
from esper.nissa.bus.subscribers import LiveSource
from esper.nissa.live.security import Security

__all__ = ["main"]

PARENT_CHECK_S: Final = 1.0
PAUSE_S: Final = 0.2
"""How long the log is left alone after it was read, so that it is read in larger parts."""
TAIL_PAUSE_S: Final = 0.005
"""The same while a client follows the events themselves."""
MAX_REPORT_BYTES: Final = 64 * 1024
"""Unsent reports beyond which further ones are dropped."""

_DECODER: Final = msgspec.json.Decoder(ServerCommand)
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(eq=False, slots=True)
class _Link:
    """The connection to the run."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def receive(self) -> ServerCommand | None:
        """Return the next command; None if the run is gone."""
        try:
            line = await self.reader.readline()
        except ConnectionError:
            return None
        return _DECODER.decode(line) if line.endswith(b"\n") else None

    def report(self, report: ServerReport) -> None:
        """Send a report without waiting."""
        # Dropped rather than awaited: visitors must not be able to fill memory through reports.
        if self.writer.transport.get_write_buffer_size() < MAX_REPORT_BYTES:
            self.writer.write(_ENCODER.encode(report) + b"\n")

    def ask(self) -> None:
        """Ask for the next position."""
        # Never dropped: no position comes without being asked for, and none is asked for twice.
        self.writer.write(_ENCODER.encode(PositionRequest()) + b"\n")

    def note_lag(self, lagged: SubscriberLagged) -> None:
        """Report that a subscriber has lost events."""
        self.report(LaggedReport(lagged=lagged))


class _RunGoneError(Exception):
    """The run has ended without saying so: it was killed."""


@dataclass(frozen=True, slots=True)
class _Follower:
    """Publishes what the run reports as committed."""

    link: _Link

    async def __call__(self, source: LiveSource) -> None:
        """Follow until the end of the run; raise _RunGoneError if it vanishes."""
        while True:
            self.link.ask()
            match await self.link.receive():
                case LogPosition(num_bytes=num_bytes):
                    await publish_up_to(source, num_bytes)
                    # A page is sent a patch every 0.25 s; only tails need events earlier.
                    await anyio.sleep(TAIL_PAUSE_S if source.subscribers else PAUSE_S)
                case LogEnd(is_complete=is_complete):
                    source.feed.close(is_complete=is_complete)
                    return
                case _:
                    raise _RunGoneError


async def _run(listener: socket.socket, connection: socket.socket) -> None:
    """Serve until the run has ended or is gone; report any other end to the run."""
    link = _Link(*await asyncio.open_connection(sock=connection))
    try:
        await _serve(link, listener)
    except Exception as error:
        first = _first_of(error)
        if not isinstance(first, _RunGoneError):
            link.report(ServerFailure(reason=f"{type(first).__name__}: {first}"))
            await link.writer.drain()
            raise


async def _serve(link: _Link, listener: socket.socket) -> None:
    request, position = await link.receive(), await link.receive()
    if not isinstance(request, ServeRequest) or not isinstance(position, LogPosition):
        raise _RunGoneError
    # Not earlier: clients may be waiting while this process is still importing its modules. Not
    # later: threads inherit the priority of the one that starts them.
    yield_to_run()
    run_dir = Path(request.run_dir)
    source = open_source(run_dir, run_id=request.run_id, note_lag=link.note_lag)
    # Read before anyone is let in: a hello names the newest event of the log.
    await publish_up_to(source, position.num_bytes)
    server = RunServer(
        source=source,
        run_dir=run_dir,
        security=Security(
            host=request.host,
            token=request.token,
            allowed_origins=frozenset(request.allowed_origins),
        ),
        listener=listener,
        follow=_Follower(link),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_with_parent, os.getppid())
        await server.run()
        tasks.cancel_scope.cancel()


def _first_of(error: BaseException) -> BaseException:
    return _first_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _end_with_parent(parent: int) -> None:
    # Beside the end of the connection, whose other end a child of the run may have inherited.
    while True:
        await anyio.sleep(PARENT_CHECK_S)
        if os.getppid() != parent:
            raise _RunGoneError


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a run; the arguments are the descriptors of the two inherited sockets."""
    listener, connection = (
        socket.socket(fileno=int(text)) for text in (sys.argv[1:] if argv is None else argv)
    )
    share_one_heap()
    try:
        anyio.run(_run, listener, connection)
    except Exception:
        return 1  # the reason was reported; nothing is printed on the operator's terminal
    return 0


if __name__ == "__main__":
    sys.exit(main())
