"""Where a coroutine runs: on a loop of the caller's thread, or beside the caller's own loop."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

import anyio

from esper.tolaria.stopping import StopFlag

__all__ = ["run_event_loop"]

T = TypeVar("T")


def run_event_loop(main: Callable[[], Coroutine[Any, Any, T]], stop: StopFlag) -> T:
    """Run a coroutine function to its end; beside a loop that is already running, on a thread.

    There nobody watches signals: an interrupt reaches the thread that waits, and is passed on.
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


def _run_afresh(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # A context taken over from the caller would tell anyio that this thread runs a loop already.
    return Context().run(partial(anyio.run, main))
