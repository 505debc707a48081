"""`esper-telemetry report` and `serve`: the dashboard of a run as a file or in a browser."""

import sys
from argparse import Namespace
from pathlib import Path
from urllib.parse import quote

import anyio

from esper.karn.report.run_report import run_directory_at, write_report
from esper.karn.view.followed_log import follow, open_source
from esper.karn.view.view_feed import ViewFeed
from esper.karn.web.routes import dashboard_routes
from esper.leyline.config import DEFAULT_SERVER_ADDRESS
from esper.leyline.errors import ExitCode
from esper.leyline.stop_signals import handled_signals
from esper.nissa.live.security import Security
from esper.nissa.live.server import ServerAddress, build_app, serve

__all__ = ["run_report", "run_serve"]


def run_report(arguments: Namespace) -> int:
    """Write a self-contained HTML report of a run."""
    output: Path = arguments.output
    write_report(run_directory_at(arguments.run), output, arguments.baseline)
    print(f"wrote {output}")
    return ExitCode.OK


def run_serve(arguments: Namespace) -> int:
    """Serve the dashboard of a finished or running run until interrupted."""
    address = ServerAddress.parse(arguments.address or DEFAULT_SERVER_ADDRESS)
    try:
        anyio.run(_serve, run_directory_at(arguments.run), address, arguments.token)
        print(file=sys.stderr)  # so that the shell's prompt starts on a new line after ^C
    except BaseExceptionGroup as group:
        raise _only_error(group) from None
    return ExitCode.INTERRUPTED


def _only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that ended the task group; the other tasks were cancelled by it."""
    first = group.exceptions[0]
    return _only_error(first) if isinstance(first, BaseExceptionGroup) else first


async def _serve(run_dir: Path, address: ServerAddress, token: str | None) -> None:
    source = open_source(run_dir)
    feed = ViewFeed(source, run_dir)
    app = build_app(
        source=source,
        run_dir=run_dir,
        security=Security(host=address.host, token=token),
        routes=dashboard_routes(feed, run_dir),
    )
    async with anyio.create_task_group() as tasks:
        bound = await tasks.start(serve, app, address)
        query = "" if token is None else f"?token={quote(token, safe='')}"
        print(f"dashboard at http://{bound}/{query} (press Ctrl-C to stop)", flush=True)
        tasks.start_soon(follow, source)
        tasks.start_soon(feed.run)
        tasks.start_soon(_end_at_signal, tasks.cancel_scope)


async def _end_at_signal(scope: anyio.CancelScope) -> None:
    """Cancel the server at the first signal; those that follow change nothing.

    Consumes: signals. Produces: a cancellation. Waits for: a signal. Unblocked by: cancellation.
    """
    with anyio.open_signal_receiver(*handled_signals()) as signals:
        async for _ in signals:
            scope.cancel()
