"""Runs a coroutine from synchronous code, also if the caller's thread already runs a loop."""

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


def _run_afresh(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # With the caller's context, anyio would assume that this thread already runs a loop.
    return Context().run(partial(anyio.run, main))
