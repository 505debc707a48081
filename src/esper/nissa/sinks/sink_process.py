"""The run's side of the process of a sink: starts it, watches that it goes on, ends it.

The run never waits for a sink, except for a bounded time at its end.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from esper.leyline.engine_payloads import SinkStopped
from esper.leyline.errors import ContractError
from esper.leyline.helper_processes import ended, ending_text, shielded_from_signals
from esper.leyline.sink_reports import SinkDone, SinkFailure, SinkPosition, SinkReport
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.sinks.registry import parse_sink

__all__ = ["run_sink"]

MODULE: Final = "esper.nissa.sinks.sink_child"
END_LIMIT_S: Final = 12.0
"""How long a sink may take for the rest of the log once the run has ended."""
EXIT_LIMIT_S: Final = 1.0
CHECK_S: Final = 0.5

_DECODER: Final = msgspec.json.Decoder(SinkReport)


async def run_sink(text: str, deadline_s: float, hub: TelemetryHub) -> None:
    """Have a process deliver the run's log to a sink until the run has ended.

    Consumes: the reports of the process. Produces: SINK_STOPPED if it ends before the run. Waits
    for: the end of the run, then for the process. Unblocked by: the feed, the end of the process,
    or a deadline. Whatever becomes of the process, the run goes on.
    """
    name = parse_sink(text).name
    try:
        process, connection = _start(hub, text)
    except OSError as error:
        reason = error.strerror or str(error)
        _report(
            hub, text, SinkStopped(sink=name, reason=f"cannot be started: {reason}", next_seq=0)
        )
        return
    try:
        watch = _Watch(*await asyncio.open_connection(sock=connection), hub, deadline_s)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch.end_with_log)
                tasks.start_soon(watch.give_up_stalled, tasks.cancel_scope)
                await watch.receive_reports()
                tasks.cancel_scope.cancel()
        finally:
            watch.writer.transport.abort()
        if watch.failure is not None:  # it does not end by itself, or is about to
            _kill(process)
        code = await anyio.to_thread.run_sync(ended, process, EXIT_LIMIT_S)
        # On a loaded machine, a process that is done may take long to end.
        if not watch.is_done and (watch.failure is not None or code != 0):
            reason = watch.failure or ending_text(code)
            _report(hub, text, SinkStopped(sink=name, reason=reason, next_seq=watch.next_seq))
    finally:
        _kill(process)


def _start(hub: TelemetryHub, text: str) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    ours, theirs = socket.socketpair()
    arguments = (str(theirs.fileno()), str(os.getpid()), str(hub.run_dir.absolute()), text)
    try:
        with theirs, shielded_from_signals():
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
    except OSError:
        ours.close()
        raise
    return process, ours


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and those that it has started, which are in its session."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # it has no session of its own yet
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()


def _report(hub: TelemetryHub, text: str, stopped: SinkStopped) -> None:
    """Report in the operational log, which the console shows; once that is closed, in Python's."""
    try:
        hub.emit(stopped)
    except ContractError:
        logging.getLogger(__name__).warning(
            "the sink %s stopped at event %d (%s); 'esper-telemetry export %s --to %s --continue' "
            "delivers the rest",
            *(stopped.sink, stopped.next_seq, stopped.reason, hub.run_dir, text),
        )


@dataclass(eq=False, slots=True)
class _Watch:
    """What is known of a sink's process."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    hub: TelemetryHub
    deadline_s: float
    next_seq: int = 0
    """The sink has confirmed every event before this one."""
    failure: str | None = None
    """Why the sink does not go on."""
    is_done: bool = False
    """Whether the sink has got the whole log."""

    async def receive_reports(self) -> None:
        """Note what the process reports until it ends.

        Consumes: reports. Produces: the position and failure of this object. Waits for: the
        process. Unblocked by: the process when it reports or ends, or cancellation.
        """
        with contextlib.suppress(ConnectionError):
            while line := await self.reader.readline():
                match _DECODER.decode(line):
                    case SinkPosition(next_seq=next_seq):
                        self.next_seq = next_seq
                    case SinkDone():
                        self.is_done = True
                        return
                    case SinkFailure(reason=reason):
                        self.failure = reason

    async def end_with_log(self) -> None:
        """Tell the process when the log is complete.

        Consumes: the feed. Produces: the end of the connection. Waits for: the end of the run.
        Unblocked by: the feed, or cancellation.
        """
        await self.hub.live.feed.wait_closed()
        self.writer.write_eof()

    async def give_up_stalled(self, scope: anyio.CancelScope) -> None:
        """Cancel `scope` once the sink is behind the log and has taken nothing for too long.

        Consumes: positions. Produces: the failure of this object. Waits for: time to pass.
        Unblocked by: cancellation.
        """
        feed = self.hub.live.feed
        position, since_s, ended_s = -1, time.monotonic(), None
        while self.failure is None:
            await anyio.sleep(min(CHECK_S, self.deadline_s / 4))
            now_s = time.monotonic()
            if self.next_seq != position or self.next_seq >= feed.next_seq:
                position, since_s = self.next_seq, now_s
            if feed.is_closed and ended_s is None:
                ended_s = now_s
            if now_s - since_s > self.deadline_s:
                self.failure = f"it has taken no event for {self.deadline_s:g} s"
            elif ended_s is not None and now_s - ended_s > END_LIMIT_S:
                self.failure = f"not done {END_LIMIT_S:g} s after the end of the run"
        scope.cancel()
