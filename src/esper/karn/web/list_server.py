"""Serving the list of a directory's runs, and the dashboards of those that visitors open."""

import socket
from dataclasses import dataclass
from pathlib import Path

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from esper.karn.web.open_runs import OpenRuns
from esper.karn.web.routes import asset_route
from esper.karn.web.runs_routes import LIST_PATH, runs_routes
from esper.nissa.live.guard import Guard
from esper.nissa.live.security import Security
from esper.nissa.live.server import serve
from esper.nissa.live.session import Stop

__all__ = ["ListServer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListServer:
    """A server for the runs of a directory."""

    parent: Path
    security: Security
    listener: socket.socket
    """Bound already; it is closed when the server has ended."""

    async def run(self) -> None:
        """Serve until cancelled.

        Consumes: the directory. Produces: pages. Waits for: its clients. Unblocked by:
        cancellation.
        """
        async with anyio.create_task_group() as tasks:
            runs = OpenRuns(self.parent, tasks)
            app = Starlette(
                routes=[
                    Route("/", _to_list),
                    asset_route(),
                    *runs_routes(self.parent),
                    *runs.routes(),
                ],
                middleware=[Middleware(Guard, security=self.security)],
            )
            app.state.source, app.state.stop = None, Stop()
            await serve(app, self.listener)


async def _to_list(request: Request) -> Response:
    """Send a visitor of the bare address to the list, the token included."""
    return RedirectResponse(request.url.replace(scheme="", netloc="", path=LIST_PATH))
