"""`esper-telemetry report` and `serve`: the dashboard as a file or in a browser."""

import socket
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from esper.karn.report.run_report import write_report
from esper.karn.view.followed_log import follow, open_source
from esper.karn.web.list_server import ListServer
from esper.karn.web.run_server import RunServer
from esper.leyline.config import DEFAULT_SERVER_ADDRESS
from esper.leyline.errors import ExitCode
from esper.leyline.heap import share_one_heap
from esper.leyline.stop_signals import handled_signals
from esper.nissa.live.address import ServerAddress, dashboard_url, listen
from esper.nissa.live.security import Security
from esper.nissa.live.token import resolve_token
from esper.nissa.reading.run_lookup import find_run, is_directory_of_runs

__all__ = ["run_report", "run_serve"]


def run_report(arguments: Namespace) -> int:
    """Write a self-contained HTML report of a run."""
    output: Path = arguments.output
    write_report(find_run(arguments.run), output, arguments.baseline)
    print(f"wrote {output}")
    return ExitCode.OK


def run_serve(arguments: Namespace) -> int:
    """Serve the dashboard of a run, or the list of a directory's runs, until interrupted."""
    address = ServerAddress.parse(arguments.address or DEFAULT_SERVER_ADDRESS)
    security = Security(host=address.host, token=resolve_token(arguments.token))
    is_list = is_directory_of_runs(arguments.run)
    directory = arguments.run.absolute() if is_list else find_run(arguments.run)
    if not is_list:
        open_source(directory)  # refuses a directory without a log before the address is printed
    serve = _serve_list if is_list else _serve
    share_one_heap()
    try:
        with listen(address) as listener:
            url = dashboard_url(address.host, listener, security.token)
            print(f"dashboard at {url} (press Ctrl-C to stop)", flush=True)
            anyio.run(_serve_until_signal, serve, directory, security, listener)
        print(file=sys.stderr)  # so that the shell's prompt starts on a new line after ^C
    except BaseExceptionGroup as group:
        raise _only_error(group) from None
    return ExitCode.INTERRUPTED


def _only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that ended the task group; the other tasks were cancelled by it."""
    first = group.exceptions[0]
    return _only_error(first) if isinstance(first, BaseExceptionGroup) else first


async def _serve_until_signal(
    serve: Callable[[Path, Security, socket.socket], Awaitable[None]],
    directory: Path,
    security: Security,
    listener: socket.socket,
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_at_signal, tasks.cancel_scope)
        await serve(directory, security, listener)
        tasks.cancel_scope.cancel()


async def _serve(run_dir: Path, security: Security, listener: socket.socket) -> None:
    """Serve a run directory, again and again if its log begins again: a run may be resumed."""
    is_restarted = True
    while is_restarted:
        server = RunServer(
            source=open_source(run_dir),
            run_dir=run_dir,
            security=security,
            listener=listener.dup(),
            follow=follow,
        )
        is_restarted = await server.run()


async def _serve_list(parent: Path, security: Security, listener: socket.socket) -> None:
    """Serve the list of a directory's runs."""
    await ListServer(parent=parent, security=security, listener=listener).run()


async def _end_at_signal(scope: anyio.CancelScope) -> None:
    """Cancel the server at the first signal; those that follow change nothing.

    Consumes: signals. Produces: a cancellation. Waits for: a signal. Unblocked by: cancellation.
    """
    with anyio.open_signal_receiver(*handled_signals()) as signals:
        async for _ in signals:
            scope.cancel()
