"""Between synchronous code and the event loop: starting a loop, and blocking calls beside it."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from esper.tolaria.stopping import StopFlag

__all__ = ["run_blocking", "run_event_loop"]

T = TypeVar("T")


def run_event_loop(main: Callable[[], Coroutine[Any, Any, T]], stop: StopFlag) -> T:
    """Run a coroutine function to completion, in a new thread if a loop is already running.

    That thread receives no signals: an interrupt is raised in the waiting thread and forwarded.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(main)
    with ThreadPoolExecutor(1, thread_name_prefix="esper-loop") as pool:
        running: Future[T] = pool.submit(_run_afresh, main)
        try:
            return running.result()
        except KeyboardInterrupt:
            stop.set("interrupted")
            return running.result()


async def run_blocking(call: Callable[[], object]) -> None:
    """Run a call that blocks, such as a write to disk, on a pooled thread while the loop goes on.

    It cannot be cancelled: the caller waits for its end even if it is cancelled meanwhile.
    """
    # run_sync waits for its thread in any case, but would not start one for a cancelled caller.
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(call)


def _run_afresh(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # With the caller's context, anyio would assume that this thread already runs a loop.
    return Context().run(partial(anyio.run, main))
