"""The process of a live server, seen from the run that has it."""

import asyncio
import contextlib
import os
import signal
import socket
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import anyio
import anyio.lowlevel
import msgspec
import pytest
from tests.builders.process_tree import server_process as server_pid
from tests.nissa.making import RUN_ID, pruned, read_events
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from esper.karn.view.followed_log import open_source, publish_up_to
from esper.karn.web import server_child, server_process
from esper.karn.web.run_server import RunServer
from esper.karn.web.server_process import run_server_process
from esper.leyline.helper_processes import NICENESS
from esper.leyline.live import (
    LogEnd,
    LogPosition,
    PositionRequest,
    ServerCommand,
    ServeRequest,
)
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
            server = await anyio.to_thread.run_sync(server_pid, os.getpid())
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
                server = await anyio.to_thread.run_sync(server_pid, os.getpid())
                own = os.getpriority(os.PRIO_PROCESS, 0)  # the tests may run under `nice`
                assert os.getpriority(os.PRIO_PROCESS, server) == min(own + NICENESS, 19)
                # A session is what Linux divides the processor between where it has autogroups.
                assert os.getsid(server) == server
                assert group_niceness(server) in (NICENESS, None)
            await anyio.to_thread.run_sync(hub.close)


async def test_position_is_sent_when_it_is_asked_for_and_the_end_without_asking(
    tmp_path: Path,
) -> None:
    ours, theirs = socket.socketpair()
    hub = TelemetryHub(tmp_path, run_id=RUN_ID)
    link = server_process._Link(*await asyncio.open_connection(sock=ours), hub=hub)
    reader, writer = await asyncio.open_connection(sock=theirs)

    async def next_command() -> ServerCommand:
        return msgspec.json.decode(await reader.readline(), type=ServerCommand)

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.send_positions, request_for(tmp_path), tasks.cancel_scope)
            tasks.start_soon(link.receive_reports)
            assert await next_command() == request_for(tmp_path)
            assert await next_command() == LogPosition(num_bytes=0)
            for _ in range(3):
                hub.emit(pruned())
                await anyio.to_thread.run_sync(hub.flush)
            writer.write(msgspec.json.encode(PositionRequest()) + b"\n")
            # One for all three blocks: had there been others, they would come first.
            num_bytes = (tmp_path / "events.jsonl").stat().st_size
            assert await next_command() == LogPosition(num_bytes=num_bytes)
            hub.emit(pruned())
            await anyio.to_thread.run_sync(hub.close)
            num_bytes = (tmp_path / "events.jsonl").stat().st_size
            assert await next_command() == LogPosition(num_bytes=num_bytes)
            assert await next_command() == LogEnd(is_complete=True)
            tasks.cancel_scope.cancel()
        for stream in (writer, link.writer):
            stream.close()


@pytest.mark.parametrize("num_tails", [0, 1])
async def test_log_is_read_more_often_while_a_client_follows_its_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_tails: int
) -> None:
    pauses: list[float] = []
    commands: list[ServerCommand] = [LogEnd(is_complete=True), LogPosition(num_bytes=0)]

    async def note_pause(delay: float) -> None:
        pauses.append(delay)

    async def next_command() -> ServerCommand:
        return commands.pop()

    monkeypatch.setattr(anyio, "sleep", note_pause)
    with TelemetryHub(tmp_path, run_id=RUN_ID):
        source = open_source(tmp_path, run_id=RUN_ID)
    for _ in range(num_tails):
        source.subscribe(0)
    await server_child._Follower(SimpleNamespace(ask=Mock(), receive=next_command))(source)

    assert pauses == [server_child.TAIL_PAUSE_S if num_tails else server_child.PAUSE_S]
    assert source.feed.is_closed


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
