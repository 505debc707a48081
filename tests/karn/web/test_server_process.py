"""The process of a live server, seen from the run that has it."""

import contextlib
import os
import signal
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.builders.process_tree import server_process
from tests.nissa.making import RUN_ID, pruned, read_events
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from esper.karn.view.followed_log import open_source, publish_up_to
from esper.karn.web.run_server import RunServer
from esper.karn.web.server_process import run_server_process
from esper.leyline.helper_processes import NICENESS
from esper.leyline.live import ServeRequest
from esper.leyline.payloads import LiveServerStopped
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.bus.subscribers import LiveSource
from esper.nissa.live.address import ServerAddress, listen
from esper.nissa.live.security import Security

pytestmark = pytest.mark.anyio
WAIT_S = 60.0


def request_for(run_dir: Path) -> ServeRequest:
    return ServeRequest(
        run_dir=str(run_dir), run_id=RUN_ID, host="127.0.0.1", token=None, allowed_origins=()
    )


def is_there(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def group_niceness(process: int) -> int | None:
    """Return the niceness of a process's whole session; None on kernels without autogroups."""
    group = Path(f"/proc/{process}/autogroup")
    return int(group.read_text().split()[-1]) if group.exists() else None


async def test_server_that_hangs_at_the_end_is_ended_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.karn.web.server_process.END_LIMIT_S", 0.2)
    monkeypatch.setattr("esper.karn.web.server_process.EXIT_LIMIT_S", 0.2)
    hub, request = TelemetryHub(tmp_path, run_id=RUN_ID), request_for(tmp_path)
    listener = listen(ServerAddress("127.0.0.1", 0))
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_server_process, listener, request, hub)
            await anyio.lowlevel.checkpoint()
            server = await anyio.to_thread.run_sync(server_process, os.getpid())
            os.kill(server, signal.SIGSTOP)
            hub.emit(pruned())
            await anyio.to_thread.run_sync(hub.close)
    assert not is_there(server)


async def test_server_yields_the_processor_to_the_run_and_to_its_workers(tmp_path: Path) -> None:
    listener = listen(ServerAddress("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with anyio.fail_after(WAIT_S), TelemetryHub(tmp_path, run_id=RUN_ID) as hub:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_server_process, listener, request_for(tmp_path), hub)
            async with connect(f"ws://127.0.0.1:{port}/ws/view", open_timeout=WAIT_S) as viewer:
                await viewer.recv()
                server = await anyio.to_thread.run_sync(server_process, os.getpid())
                own = os.getpriority(os.PRIO_PROCESS, 0)  # the tests may run under `nice`
                assert os.getpriority(os.PRIO_PROCESS, server) == min(own + NICENESS, 19)
                # A session is what Linux divides the processor between where it has autogroups.
                assert os.getsid(server) == server
                assert group_niceness(server) in (NICENESS, None)
            await anyio.to_thread.run_sync(hub.close)


async def test_server_that_cannot_be_started_is_reported_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-such-python"))
    listener = listen(ServerAddress("127.0.0.1", 0))
    with TelemetryHub(tmp_path, run_id=RUN_ID) as hub, anyio.fail_after(WAIT_S):
        await run_server_process(listener, request_for(tmp_path), hub)
        hub.emit(pruned())
    (stopped,) = read_events(tmp_path / "operational.jsonl")
    assert isinstance(stopped.data, LiveServerStopped)
    assert stopped.data.reason == "it cannot be started: no such file or directory"


async def test_viewer_gets_the_end_from_a_server_whose_view_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.karn.view.view_feed.PAUSE_S", 2.0)
    with TelemetryHub(tmp_path, run_id=RUN_ID) as hub:
        hub.emit(pruned())
    ended = anyio.Event()
    listener = listen(ServerAddress("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = RunServer(
        source=open_source(tmp_path),
        run_dir=tmp_path,
        security=Security(host="127.0.0.1"),
        listener=listener,
        follow=partial(follow_until, ended),
    )
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run)
            async with connect(f"ws://127.0.0.1:{port}/ws/view") as viewer:
                await viewer.recv()
                ended.set()
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        await viewer.recv()
                assert viewer.close_code == 1000


async def follow_until(ended: anyio.Event, source: LiveSource) -> None:
    await publish_up_to(source, None)
    await ended.wait()
    source.feed.close()
