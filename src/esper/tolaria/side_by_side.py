"""Series of results that threads produce side by side."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

from esper.leyline.errors import InterruptedRunError

__all__ = ["results_side_by_side"]

T = TypeVar("T")
_Arrivals: TypeAlias = SimpleQueue[tuple[T] | Future[None]]
"""Results, each in a tuple of its own, and the series that have ended."""


def results_side_by_side(
    series: Sequence[Callable[[], Iterator[T]]], num_threads: int
) -> Iterator[T]:
    """Yield the results of all series on the caller's thread, as they arrive.

    A series runs on one thread. After a failure no further series starts; the results of those
    that are under way are still yielded before the failure is raised.
    """
    arrivals: _Arrivals[T] = SimpleQueue()
    with ThreadPoolExecutor(num_threads, thread_name_prefix="esper-run") as pool:
        waiting = [pool.submit(_produce, one, arrivals) for one in series]
        for ended in waiting:
            ended.add_done_callback(arrivals.put)
        try:
            yield from _until_failure(arrivals, len(waiting))
        finally:
            # Also if the caller stops iterating.
            pool.shutdown(cancel_futures=True)
        while not arrivals.empty():
            if isinstance(last := arrivals.get(), tuple):
                yield from last
    if cause := _cause_among(waiting):
        raise cause


def _produce(one: Callable[[], Iterator[T]], arrivals: _Arrivals[T]) -> None:
    for result in one():
        arrivals.put((result,))


def _until_failure(arrivals: _Arrivals[T], num_left: int) -> Iterator[T]:
    while num_left:
        match arrivals.get():
            case Future() as ended:
                if ended.exception() is not None:
                    return
                num_left -= 1
            case arrived:
                yield from arrived


def _cause_among(waiting: Sequence[Future[None]]) -> BaseException | None:
    """Return the original failure: other series may only have been stopped because of it."""
    ended = [done for done in waiting if not done.cancelled()]
    errors = [error for done in ended if (error := done.exception()) is not None]
    causes = [error for error in errors if not isinstance(error, InterruptedRunError)]
    return next(iter(causes or errors), None)
