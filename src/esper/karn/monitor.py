"""Monitoring of a live run: the console, and the dashboard server if requested."""

import contextlib
import logging
import socket
from dataclasses import dataclass
from typing import TextIO
from urllib.parse import quote

import anyio

from esper.karn.console.console import Console
from esper.karn.view.view_feed import ViewFeed
from esper.karn.web.page import serve_command
from esper.karn.web.routes import dashboard_routes
from esper.leyline.config import RunOptions
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.live.security import Security
from esper.nissa.live.server import ServerAddress, build_app, listen, serve
from esper.nissa.storage.run_directory import traces_directory

__all__ = ["RunMonitor", "build_monitor"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _BoundServer:
    """A server that is bound but not serving yet."""

    address: ServerAddress
    listener: socket.socket
    security: Security

    @property
    def url(self) -> str:
        """Return the URL of the dashboard, including the token."""
        port = self.listener.getsockname()[1]
        token = self.security.token
        query = "" if token is None else f"?token={quote(token, safe='')}"
        return f"http://{ServerAddress(self.address.host, port)}/{query}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMonitor:
    """Runs alongside a run: updates the view, draws the console, serves the dashboard."""

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
        listeners = () if console is None else (console.on_event,)
        feed = ViewFeed(hub.live, hub.run_dir, listeners)
        async with anyio.create_task_group() as tasks:
            if self.server is not None:
                tasks.start_soon(self._serve, self.server, hub, feed)
            if console is None:
                await feed.run()
            else:
                await _show(console, feed)

    def _console(self, output: TextIO, hub: TelemetryHub) -> Console:
        where = [f"log        {hub.run_dir}"]
        traces = traces_directory(hub.run_dir, self.run.profiler)
        if traces is not None:
            where.append(f"traces     {traces}")
        address = () if self.server is None else (f"dashboard  {self.server.url}",)
        # The summary is printed after the server has stopped.
        again = () if self.server is None else (f"dashboard  {serve_command(hub.run_dir)}",)
        return Console(
            output,
            is_quiet=self.run.quiet,
            footer=(*where, *address),
            final_footer=(*where, *again),
        )

    async def _serve(self, server: _BoundServer, hub: TelemetryHub, feed: ViewFeed) -> None:
        app = build_app(
            source=hub.live,
            run_dir=hub.run_dir,
            security=server.security,
            routes=dashboard_routes(feed, hub.run_dir),
        )
        await serve(app, server.address, listener=server.listener)


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
            token=run.serve_token,
            allowed_origins=frozenset(run.serve_origins),
        )
        server = _BoundServer(address=address, listener=listen(address), security=security)
        _announce(f"dashboard at {server.url}", output)
    return RunMonitor(output=output, run=run, server=server)


def _announce(line: str, output: TextIO | None) -> None:
    if output is None:
        logging.getLogger(__name__).info(line)
        return
    # An output that fails must not end the run.
    with contextlib.suppress(OSError, ValueError):
        output.write(f"{line}\n")
        output.flush()
