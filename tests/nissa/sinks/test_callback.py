"""A function of the caller gets every event once, and cannot end the run."""

from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.nissa.making import RUN_ID, pruned, read_events

from esper.leyline.engine_payloads import SinkStopped
from esper.leyline.telemetry import Event
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.sinks.callback import run_callback

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def call(tmp_path: Path, callback: partial[None], *, first_seq: int, num_events: int) -> None:
    hub = TelemetryHub(tmp_path, run_id=RUN_ID)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for _ in range(first_seq):
                hub.emit(pruned())
            tasks.start_soon(run_callback, callback, first_seq, hub)
            for _ in range(num_events):
                hub.emit(pruned())
                await anyio.lowlevel.checkpoint()
            await anyio.to_thread.run_sync(partial(hub.flush))
            await anyio.to_thread.run_sync(hub.close)


def note(seen: list[int], fails_at: int | None, event: Event) -> None:
    seen.append(event.seq)
    if event.seq == fails_at:
        raise RuntimeError("no more")


async def test_every_event_from_the_first_one_on_comes_once_and_in_order(tmp_path: Path) -> None:
    seen: list[int] = []
    await call(tmp_path, partial(note, seen, None), first_seq=5, num_events=300)
    assert seen == list(range(5, 305))


async def test_a_function_that_raises_is_not_called_again_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    hub = TelemetryHub(tmp_path, run_id=RUN_ID)
    for _ in range(9):
        hub.emit(pruned())
    await anyio.to_thread.run_sync(hub.flush)
    with anyio.fail_after(30):
        await run_callback(partial(note, seen, 3), 0, hub)
    await anyio.to_thread.run_sync(hub.close)
    assert seen == [0, 1, 2, 3]
    (stopped,) = read_events(tmp_path / "operational.jsonl")
    assert isinstance(stopped.data, SinkStopped)
    assert (stopped.data.sink, stopped.data.reason) == ("on_event", "RuntimeError: no more")
    assert [record.exc_info is not None for record in caplog.records] == [True]
