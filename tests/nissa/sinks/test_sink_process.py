"""The process of a sink, seen from the run that has it: whatever becomes of it, the run goes on."""

import logging
import os
import signal
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.builders.process_tree import helper_process
from tests.nissa.making import RUN_ID, pruned, read_events

from esper.leyline.engine_payloads import SinkStopped
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.sinks.sink_process import run_sink

pytestmark = pytest.mark.anyio
WAIT_S = 60.0
PATIENT_S = 50.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give sinks on a busy machine the time that they need at the end."""
    monkeypatch.setattr("esper.nissa.sinks.sink_process.END_LIMIT_S", PATIENT_S)


def stops(run_dir: Path) -> list[SinkStopped]:
    events = read_events(run_dir / "operational.jsonl")
    return [event.data for event in events if isinstance(event.data, SinkStopped)]


async def report_of(run_dir: Path) -> SinkStopped:
    """Wait for the report of a sink that has stopped, and expect no other."""
    while not (found := stops(run_dir)):
        await anyio.lowlevel.checkpoint()
    (stopped,) = found
    return stopped


async def grown(path: Path) -> None:
    while not has_content(path):
        await anyio.lowlevel.checkpoint()


def has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


async def test_a_sink_gets_every_event_up_to_the_last(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    hub = TelemetryHub(tmp_path, run_id=RUN_ID)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_sink, f"jsonl:{out}", PATIENT_S, hub)
            for index in range(500):
                hub.emit(pruned(f"r0c{index % 3}"))
                await anyio.lowlevel.checkpoint()
            await anyio.to_thread.run_sync(hub.close)
    assert out.read_bytes() == (tmp_path / "events.jsonl").read_bytes()
    assert stops(tmp_path) == []


async def test_a_killed_sink_is_reported_once_and_the_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    hub = TelemetryHub(tmp_path, run_id=RUN_ID)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_sink, f"jsonl:{out}", PATIENT_S, hub)
            hub.emit(pruned())
            await grown(out)
            sink = await anyio.to_thread.run_sync(helper_process, os.getpid(), b"sink_child")
            os.kill(sink, signal.SIGKILL)
            stopped = await report_of(tmp_path)
            hub.emit(pruned())
            await anyio.to_thread.run_sync(hub.close)
    assert (stopped.sink, stopped.reason) == ("jsonl", "ended by signal 9")
    assert len(read_events(tmp_path / "events.jsonl")) == 2


async def test_a_sink_that_takes_nothing_is_ended_and_reported_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # which nobody reads: opening it never returns
    hub = TelemetryHub(tmp_path, run_id=RUN_ID)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_sink, f"jsonl:{pipe}", 0.4, hub)
            hub.emit(pruned())
            stopped = await report_of(tmp_path)
            await anyio.to_thread.run_sync(hub.close)
    assert stopped.reason == "it has taken no event for 0.4 s"
    with pytest.raises(LookupError):
        helper_process(os.getpid(), b"sink_child")


async def test_a_sink_that_fails_says_why(tmp_path: Path) -> None:
    hub = TelemetryHub(tmp_path, run_id=RUN_ID)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_sink, f"jsonl:{tmp_path}", PATIENT_S, hub)
            stopped = await report_of(tmp_path)
            await anyio.to_thread.run_sync(hub.close)
    assert stopped.reason == f"{tmp_path}: Is a directory"


async def test_a_sink_that_is_late_at_the_end_is_ended_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("esper.nissa.sinks.sink_process.END_LIMIT_S", 0.2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    hub = TelemetryHub(tmp_path, run_id=RUN_ID)
    with anyio.fail_after(WAIT_S), caplog.at_level(logging.WARNING):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_sink, f"jsonl:{pipe}", PATIENT_S, hub)
            hub.emit(pruned())
            await anyio.to_thread.run_sync(hub.close)
    (message,) = caplog.messages
    assert "not done 0.2 s after the end of the run" in message
    assert f"--to jsonl:{pipe} --continue" in message


async def test_a_sink_that_has_got_everything_may_take_long_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("esper.nissa.sinks.sink_process.EXIT_LIMIT_S", 0.0)
    out = tmp_path / "out.jsonl"
    hub = TelemetryHub(tmp_path, run_id=RUN_ID)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_sink, f"jsonl:{out}", PATIENT_S, hub)
            hub.emit(pruned())
            await anyio.to_thread.run_sync(hub.close)
    assert out.read_bytes() == (tmp_path / "events.jsonl").read_bytes()
    assert caplog.messages == []


async def test_a_sink_that_cannot_be_started_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-such-python"))
    with TelemetryHub(tmp_path, run_id=RUN_ID) as hub, anyio.fail_after(WAIT_S):
        await run_sink("jsonl:out", PATIENT_S, hub)
    (stopped,) = stops(tmp_path)
    assert stopped.reason == "cannot be started: No such file or directory"
