"""Runs that visitors of a list have opened: each has a view and the routes of its dashboard."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import anyio
from anyio.abc import TaskGroup
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount
from starlette.types import Receive, Scope, Send

from esper.karn.view.followed_log import follow, open_source
from esper.karn.view.view_feed import ViewFeed
from esper.karn.web.routes import dashboard_routes
from esper.leyline.errors import UnreadableFileError
from esper.leyline.live import CloseCode
from esper.nissa.bus.subscribers import LiveSource
from esper.nissa.live.app import build_app
from esper.nissa.live.guard import budget_of
from esper.nissa.live.session import Stop
from esper.nissa.reading.run_lookup import is_run_directory

__all__ = ["OpenRuns"]

PREFIX: Final = "/run/"
MAX_OPEN: Final = 4
"""Beyond it, the run that was asked for longest ago is closed."""
OPEN_UNITS: Final = 100.0
"""Cost of opening a run, in units of the connection's budget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _OpenRun:
    source: LiveSource
    view: ViewFeed
    app: Starlette
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @property
    def stop(self) -> Stop:
        stop: Stop = self.app.state.stop
        return stop


@dataclass(eq=False, slots=True)
class OpenRuns:
    """An ASGI app: the dashboards of a directory's runs, below `/run/NAME/`."""

    parent: Path
    tasks: TaskGroup
    """In which the logs of opened runs are followed."""
    _runs: dict[str, _OpenRun] = field(default_factory=dict)
    """By name; the one that was asked for last is the last."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes, for the app of a server."""
        return [Mount(f"{PREFIX}{{name}}", app=self)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request for one run."""
        name = scope["path_params"]["name"]
        run = self._runs.pop(name, None)
        if run is None:
            await budget_of(scope).spend(OPEN_UNITS)
            run = self._runs.pop(name, None) or self._opened(name)
        if run is None:
            await PlainTextResponse("no such run here\n", status_code=404)(scope, receive, send)
            return
        self._runs[name] = run
        await run.app(scope, receive, send)

    def _opened(self, name: str) -> _OpenRun | None:
        run_dir = self.parent / name
        # A name of one part cannot lead out of the directory.
        if name in ("", ".", "..") or run_dir.name != name or not is_run_directory(run_dir):
            return None
        try:
            source = open_source(run_dir)
        except UnreadableFileError:
            return None
        view = ViewFeed(source, run_dir)
        base = f"{PREFIX}{quote(name, safe='')}"
        app = build_app(
            source=source,
            run_dir=run_dir,
            security=None,
            routes=dashboard_routes(view, run_dir, base),
        )
        for oldest in list(self._runs)[: max(len(self._runs) - MAX_OPEN + 1, 0)]:
            self._close(self._runs.pop(oldest), CloseCode.TOO_MANY_CONNECTIONS)
        run = _OpenRun(source=source, view=view, app=app)
        self.tasks.start_soon(self._follow, name, run)
        return run

    async def _follow(self, name: str, run: _OpenRun) -> None:
        """Follow an opened run until it is closed.

        Consumes: the run's log. Produces: blocks on its feed, and its view. Waits for: the log to
        grow. Unblocked by: cancellation, or a log that cannot be read any more.
        """
        with run.scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.view.run)
                try:
                    await follow(run.source)
                except (OSError, UnreadableFileError):
                    # A resumed run has cut the log back; whoever asks for it opens it again.
                    self._close(run, CloseCode.LOG_RESTARTED)
        if self._runs.get(name) is run:
            del self._runs[name]

    @staticmethod
    def _close(run: _OpenRun, code: CloseCode) -> None:
        run.stop.code = code
        run.stop.event.set()
        run.scope.cancel()
