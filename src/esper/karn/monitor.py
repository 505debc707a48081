"""Monitoring of a live run: the console, and the dashboard server if requested."""

import contextlib
import logging
import socket
from dataclasses import dataclass
from typing import TextIO

import anyio

from esper.karn.console.console import Console
from esper.karn.view.view_feed import ViewFeed
from esper.karn.web.page import serve_command
from esper.karn.web.server_process import run_server_process
from esper.leyline.config import RunOptions
from esper.leyline.live import ServeRequest
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.live.address import ServerAddress, dashboard_url, listen
from esper.nissa.live.security import Security
from esper.nissa.live.token import resolve_token
from esper.nissa.storage.run_directory import traces_directory

__all__ = ["RunMonitor", "announce", "build_monitor"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _BoundServer:
    """A server that is bound but not serving yet."""

    address: ServerAddress
    listener: socket.socket
    security: Security

    def url(self, *, has_token: bool) -> str:
        """Return the URL of the dashboard, with or without the token."""
        token = self.security.token if has_token else None
        return dashboard_url(self.address.host, self.listener, token)

    def request(self, hub: TelemetryHub) -> ServeRequest:
        """Return what the server's process needs to know."""
        return ServeRequest(
            run_dir=str(hub.run_dir.absolute()),
            run_id=hub.run_id,
            host=self.security.host,
            token=self.security.token,
            allowed_origins=tuple(self.security.allowed_origins),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMonitor:
    """Runs alongside a run: draws the console, and has a process serve the dashboard."""

    output: TextIO | None
    """Where progress is printed; None prints nothing."""
    run: RunOptions
    server: _BoundServer | None

    async def __call__(self, hub: TelemetryHub) -> None:
        """Show the run until its last event, then print the summary.

        Consumes: the run's log. Produces: screens, pages, live frames. Waits for: the end of the
        log. Unblocked by: the hub when it is closed, or cancellation.
        """
        console = None if self.output is None else self._console(self.output, hub)
        async with anyio.create_task_group() as tasks:
            if self.server is not None:
                request = self.server.request(hub)
                tasks.start_soon(run_server_process, self.server.listener, request, hub)
            if console is not None:
                await _show(console, ViewFeed(hub.live, hub.run_dir, (console.on_event,)))

    def _console(self, output: TextIO, hub: TelemetryHub) -> Console:
        where = [f"log        {hub.run_dir}"]
        traces = traces_directory(hub.run_dir, self.run.profiler)
        if traces is not None:
            where.append(f"traces     {traces}")
        # Without the token, which is printed once, when the server is bound.
        url = None if self.server is None else self.server.url(has_token=False)
        address = () if url is None else (f"dashboard  {url}",)
        # The summary is printed after the server has stopped.
        again = () if self.server is None else (f"dashboard  {serve_command(hub.run_dir)}",)
        return Console(
            output,
            is_quiet=self.run.quiet,
            footer=(*where, *address),
            final_footer=(*where, *again),
            run_dir=hub.run_dir,
        )


async def _show(console: Console, feed: ViewFeed) -> None:
    """Draw the live screen until the last event has been read, then write the summary."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(console.run)
        await feed.run()
        tasks.cancel_scope.cancel()
    console.finish()


def build_monitor(run: RunOptions, output: TextIO | None) -> RunMonitor:
    """Build the monitor of a run and bind its server; raise UsageError if binding fails."""
    server = None
    if run.serve is not None:
        address = ServerAddress.parse(run.serve)
        security = Security(
            host=address.host,
            token=resolve_token(run.serve_token),
            allowed_origins=frozenset(run.serve_origins),
        )
        server = _BoundServer(address=address, listener=listen(address), security=security)
        url = server.url(has_token=output is not None and not run.quiet)
        announce(f"dashboard at {url}", output)
    return RunMonitor(output=output, run=run, server=server)


def announce(line: str, output: TextIO | None) -> None:
    """Write a line to where progress is printed; without such a place, log it."""
    if output is None:
        logging.getLogger(__name__).info(line)
        return
    # An output that fails must not end the run.
    with contextlib.suppress(OSError, ValueError):
        output.write(f"{line}\n")
        output.flush()
