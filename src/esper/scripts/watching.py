"""What is shown of a run while it goes on: the console, and the server where one is asked for."""

import contextlib
import socket
from dataclasses import dataclass
from typing import TextIO
from urllib.parse import quote

import anyio
import anyio.to_thread

from esper.karn.console import Console
from esper.karn.server import dashboard_routes
from esper.karn.view_feed import ViewFeed
from esper.leyline.config import RunOptions
from esper.leyline.errors import TelemetryLostError
from esper.nissa.hub import TelemetryHub
from esper.nissa.run_directory import traces_directory
from esper.nissa.security import Security
from esper.nissa.server import ServerAddress, build_app, listen, serve

__all__ = ["Watcher", "build_watcher"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Service:
    """A server that is bound but not serving yet."""

    address: ServerAddress
    listener: socket.socket
    security: Security

    @property
    def url(self) -> str:
        """Return where a browser finds the dashboard."""
        port = self.listener.getsockname()[1]
        token = self.security.token
        query = "" if token is None else f"?token={quote(token, safe='')}"
        return f"http://{ServerAddress(self.address.host, port)}/{query}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Watcher:
    """Runs beside a run: feeds the view, draws the console, serves the dashboard."""

    output: TextIO
    run: RunOptions
    service: _Service | None

    async def __call__(self, hub: TelemetryHub) -> None:
        """Show the run until it ends, then sum it up.

        Consumes: the run's log. Produces: screens, pages, live frames. Waits for: the end of the
        run. Unblocked by: the supervisor's cancellation.
        """
        console = Console(self.output, is_quiet=self.run.quiet, footer=self._footer(hub))
        feed = ViewFeed(hub.live, hub.run_dir, listeners=[console.on_event])
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(console.run)
                tasks.start_soon(feed.run)
                if self.service is not None:
                    tasks.start_soon(self._serve, self.service, hub, feed)
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(TelemetryLostError):
                await anyio.to_thread.run_sync(hub.flush)
                await anyio.to_thread.run_sync(feed.drain)
            console.finish()

    def _footer(self, hub: TelemetryHub) -> tuple[str, ...]:
        lines = [f"log        {hub.run_dir}"]
        traces = traces_directory(hub.run_dir, self.run.profiler)
        if traces is not None:
            lines.append(f"traces     {traces}")
        if self.service is not None:
            lines.append(f"dashboard  {self.service.url}")
        return tuple(lines)

    async def _serve(self, service: _Service, hub: TelemetryHub, feed: ViewFeed) -> None:
        app = build_app(
            source=hub.live,
            run_dir=hub.run_dir,
            security=service.security,
            routes=dashboard_routes(feed),
        )
        await serve(app, service.address, listener=service.listener)


def build_watcher(run: RunOptions, output: TextIO) -> Watcher:
    """Prepare what is shown of a run; an address that cannot be had is an error now."""
    service = None
    if run.serve is not None:
        address = ServerAddress.parse(run.serve)
        security = Security(
            host=address.host,
            token=run.serve_token,
            allowed_origins=frozenset(run.serve_origins),
        )
        service = _Service(address=address, listener=listen(address), security=security)
        print(f"dashboard at {service.url}", file=output, flush=True)
    return Watcher(output=output, run=run, service=service)
