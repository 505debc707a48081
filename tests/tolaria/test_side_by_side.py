"""Series of results: order, threads, and what is kept when one of them fails."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest

from esper.leyline.errors import InterruptedRunError, RunFailedError
from esper.tolaria import side_by_side
from esper.tolaria.side_by_side import results_side_by_side

T = TypeVar("T")
WAIT_S = 30.0
"""Longest wait for another thread; only reached by a defect."""


def yielding(*values: T) -> Callable[[], Iterator[T]]:
    return partial(iter, values)


@pytest.fixture
def shutting_down(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when what has not started is cancelled."""
    is_set = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            is_set.set()
            super().shutdown(wait=wait)

    monkeypatch.setattr(side_by_side, "ThreadPoolExecutor", Pool)
    return is_set


def test_every_result_arrives_and_those_of_a_series_in_order() -> None:
    series = [yielding(*range(first, first + 10)) for first in range(0, 100, 10)]
    arrived = [*results_side_by_side(series, 3)]
    assert sorted(arrived) == [*range(100)]
    for first in range(0, 100, 10):
        mine = [value for value in arrived if first <= value < first + 10]
        assert mine == sorted(mine)


def test_as_many_series_run_at_a_time_as_there_are_threads() -> None:
    both = threading.Barrier(2)

    def meet() -> Iterator[str]:
        both.wait(WAIT_S)
        yield threading.current_thread().name

    assert len(set(results_side_by_side([meet, meet], 2))) == 2


def test_results_reach_the_caller_before_their_series_ends() -> None:
    is_seen = threading.Event()

    def wait_for_the_caller() -> Iterator[str]:
        yield "first"
        assert is_seen.wait(WAIT_S)
        yield "second"

    arrived = results_side_by_side([wait_for_the_caller], 1)
    assert next(arrived) == "first"
    is_seen.set()
    assert next(arrived) == "second"


def test_a_failure_is_raised_after_the_results_under_way_and_nothing_more_starts(
    shutting_down: threading.Event,
) -> None:
    def fail() -> Iterator[str]:
        yield "before"
        raise RunFailedError("broken")

    def finish() -> Iterator[str]:
        assert shutting_down.wait(WAIT_S)
        yield "under way"

    # The thread of the failure may take the next series, but not the one behind it.
    arrived = []
    results = results_side_by_side([finish, fail, finish, yielding("late")], 2)
    with pytest.raises(RunFailedError, match="broken"):
        arrived.extend(results)
    assert arrived[0] == "before"
    assert "under way" in arrived
    assert "late" not in arrived


def test_what_others_were_stopped_by_is_raised_rather_than_that_they_stopped() -> None:
    has_failed = threading.Event()

    def stopped() -> Iterator[int]:
        assert has_failed.wait(WAIT_S)
        raise InterruptedRunError("a stop was requested")
        yield 0

    def fail() -> Iterator[int]:
        has_failed.set()
        raise RunFailedError("the cause")
        yield 0

    with pytest.raises(RunFailedError, match="the cause"):
        [*results_side_by_side([stopped, fail], 2)]


def test_an_interruption_alone_is_raised() -> None:
    def stopped() -> Iterator[int]:
        yield 1
        raise InterruptedRunError("a stop was requested")

    arrived = results_side_by_side([stopped], 1)
    assert next(arrived) == 1
    with pytest.raises(InterruptedRunError):
        next(arrived)


def test_no_series_starts_after_the_caller_has_stopped_iterating(
    shutting_down: threading.Event,
) -> None:
    started: list[str] = []

    def until_the_end() -> Iterator[str]:
        yield "first"
        assert shutting_down.wait(WAIT_S)

    def late() -> Iterator[str]:
        started.append("late")
        yield "late"

    results = results_side_by_side([until_the_end, late], 1)
    assert next(results) == "first"
    results.close()
    assert started == []
