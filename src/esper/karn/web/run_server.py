"""Serving the page, the API and the live tail of one run directory."""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from esper.karn.view.followed_log import LogRestartedError
from esper.karn.view.view_feed import ViewFeed
from esper.karn.web.open_runs import OpenRuns
from esper.karn.web.routes import dashboard_routes
from esper.karn.web.runs_routes import runs_routes
from esper.leyline.live import CloseCode
from esper.nissa.bus.subscribers import LiveSource
from esper.nissa.live.app import build_app
from esper.nissa.live.security import Security
from esper.nissa.live.server import serve
from esper.nissa.live.session import Stop

__all__ = ["RunServer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunServer:
    """A server for one source, which is followed by the given task."""

    source: LiveSource
    run_dir: Path
    security: Security
    listener: socket.socket
    """Bound already; it is closed when the server has ended."""
    follow: Callable[[LiveSource], Awaitable[None]]
    """Publishes the source's blocks, and closes its feed when the run has ended."""
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def run(self) -> bool:
        """Serve until the run has ended; return True if its log has begun again instead.

        Consumes: the followed log. Produces: pages and live frames. Waits for: the end of the run
        and its clients. Unblocked by: the feed, a restarted log, or cancellation.
        """
        view = ViewFeed(self.source, self.run_dir)
        parent, name = self.run_dir.absolute().parent, self.run_dir.absolute().name
        with self._scope:
            async with anyio.create_task_group() as tasks:
                app = build_app(
                    source=self.source,
                    run_dir=self.run_dir,
                    security=self.security,
                    routes=[
                        *dashboard_routes(view, self.run_dir),
                        *runs_routes(parent, own=name),
                        *OpenRuns(parent, tasks).routes(),
                    ],
                )
                tasks.start_soon(view.run)
                tasks.start_soon(self._follow, app.state.stop)
                await serve(app, self.listener, is_settled=view.is_settled)
                tasks.cancel_scope.cancel()
        return app.state.stop.code is CloseCode.LOG_RESTARTED

    async def _follow(self, stop: Stop) -> None:
        try:
            await self.follow(self.source)
        except LogRestartedError:
            stop.code = CloseCode.LOG_RESTARTED
            self._scope.cancel()
