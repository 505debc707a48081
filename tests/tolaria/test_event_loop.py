"""Where a coroutine runs, and how an interrupt reaches it beside another loop."""

import asyncio
import threading
from concurrent.futures import Future

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from esper.leyline.errors import InterruptedRunError
from esper.tolaria.event_loop import run_blocking, run_event_loop
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


@pytest.mark.anyio
async def test_blocking_call_ends_before_a_cancelled_caller_goes_on() -> None:
    entered, released, done = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        entered.set()
        assert released.wait(20)
        done.set()

    async def cancel_meanwhile(scope: anyio.CancelScope) -> None:
        await anyio.to_thread.run_sync(entered.wait, 20)
        scope.cancel()
        released.set()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                group.start_soon(cancel_meanwhile, scope)
                await run_blocking(call)
                assert done.is_set()
                await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught


@pytest.mark.anyio
async def test_blocking_call_runs_even_for_a_caller_that_is_already_cancelled() -> None:
    saved = threading.Event()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_blocking(saved.set)
    assert saved.is_set()
