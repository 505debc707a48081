"""Where a coroutine runs, and how an interrupt reaches it beside another loop."""

import asyncio
import threading
from concurrent.futures import Future

import anyio
import pytest

from esper.leyline.errors import InterruptedRunError
from esper.simic.training.event_loop import run_event_loop
from esper.tolaria.stopping import StopFlag


async def _thread_name() -> str:
    return threading.current_thread().name


def test_coroutine_runs_on_the_callers_thread_where_no_loop_runs() -> None:
    assert run_event_loop(_thread_name, StopFlag()) == threading.current_thread().name


def test_coroutine_runs_on_a_thread_of_its_own_beside_a_loop() -> None:
    async def inside() -> str:
        return run_event_loop(_thread_name, StopFlag())

    assert asyncio.run(inside()).startswith("esper-loop")


def test_error_of_a_coroutine_beside_a_loop_reaches_the_caller() -> None:
    async def broken() -> None:
        raise ValueError("from the coroutine")

    async def inside() -> None:
        run_event_loop(broken, StopFlag())

    with pytest.raises(ValueError, match="from the coroutine"):
        asyncio.run(inside())


def test_interrupt_beside_a_loop_stops_the_coroutine_at_its_next_cancellation_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop, interrupts = StopFlag(), [KeyboardInterrupt()]
    wait = Future.result

    def interrupted_once(future: Future[None], timeout_s: float | None = None) -> None:
        if interrupts:
            raise interrupts.pop()
        return wait(future, timeout_s)

    async def work() -> None:
        with anyio.fail_after(20):
            while True:
                stop.checkpoint()
                await anyio.sleep(0.001)

    async def inside() -> None:
        monkeypatch.setattr(Future, "result", interrupted_once)
        run_event_loop(work, stop)

    with pytest.raises(InterruptedRunError, match="interrupted"):
        asyncio.run(inside())
