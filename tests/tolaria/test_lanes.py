"""Lanes: order, completion, cancellation, abandonment, bounded streams."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import anyio
import pytest

from esper.leyline.errors import InterruptedRunError, RunFailedError
from esper.tolaria.lanes import (
    BatchStream,
    Lane,
    feed,
    lane_stacks,
    wait_for_all,
    wait_for_some,
)
from esper.tolaria.stopping import StopFlag

WAIT_S = 20.0
pytestmark = pytest.mark.anyio


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane("lane-0")
    yield lane
    assert lane.close(WAIT_S)


def fail(error: Exception) -> None:
    raise error


async def test_calls_run_in_order_on_one_thread(lane: Lane) -> None:
    seen: list[tuple[int, int]] = []

    def note(index: int) -> int:
        seen.append((index, threading.get_ident()))
        return index

    futures = [lane.submit(note, index) for index in range(100)]

    assert await wait_for_all(futures) == list(range(100))
    assert seen == [(index, lane.thread_id) for index in range(100)]
    assert lane.thread_id != threading.get_ident()


async def test_a_failure_is_raised_to_the_caller_that_awaits_it_and_the_lane_lives_on(
    lane: Lane,
) -> None:
    with pytest.raises(ValueError, match="broken"):
        await lane.run(fail, ValueError("broken"))
    assert await lane.run(int, "7") == 7


async def test_all_lanes_are_waited_for_even_if_one_fails(lane: Lane) -> None:
    other = Lane("lane-1")
    may_end, has_ended = threading.Event(), threading.Event()

    def slow() -> None:
        may_end.wait(WAIT_S)
        has_ended.set()

    futures: list[Future[None]] = [lane.submit(fail, ValueError("first")), other.submit(slow)]
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, may_end.set)
            with pytest.raises(ValueError, match="first"):
                await wait_for_all(futures)

    assert has_ended.is_set()
    assert other.close(WAIT_S)


async def test_a_cancelled_wait_ends_only_after_the_call_has_ended(lane: Lane) -> None:
    started, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def work() -> None:
        started.set()
        may_end.wait(WAIT_S)
        order.append("call ended")

    async def wait() -> None:
        try:
            await lane.run(work)
        finally:
            order.append("wait ended")

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.to_thread.run_sync(started.wait)
            group.cancel_scope.cancel()
            # The waiting task must not end by itself: give the loop every chance to let it.
            with anyio.CancelScope(shield=True):
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                assert order == []
                may_end.set()

    assert order == ["call ended", "wait ended"]


async def test_a_wait_for_some_returns_those_that_are_done() -> None:
    futures: list[Future[int]] = [Future() for _ in range(4)]
    futures[2].set_result(2)
    with anyio.fail_after(WAIT_S):
        assert await wait_for_some(futures, 1) == [futures[2]]
        futures[0].set_result(0)
        assert await wait_for_some(futures, 1) == [futures[0], futures[2]]


async def test_a_wait_for_some_that_is_cancelled_ends_with_the_last_of_all() -> None:
    futures: list[Future[None]] = [Future() for _ in range(3)]
    ended: list[str] = []

    async def wait() -> None:
        try:
            await wait_for_some(futures, 1)
        finally:
            ended.append("wait")

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for future in futures:
                    await anyio.wait_all_tasks_blocked()
                    assert ended == []
                    future.set_result(None)

    assert ended == ["wait"]


async def test_a_wait_for_some_of_which_one_fails_ends_with_the_last_of_all() -> None:
    futures: list[Future[None]] = [Future() for _ in range(3)]
    raised: list[str] = []

    async def wait() -> None:
        try:
            await wait_for_some(futures, 1)
        except ValueError as error:
            raised.append(str(error))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            futures[1].set_exception(ValueError("first"))
            for future in (futures[0], futures[2]):
                await anyio.wait_all_tasks_blocked()
                assert raised == []
                future.set_result(None)

    assert raised == ["first"]


async def test_an_abandoned_call_fails_at_once_and_its_late_end_is_ignored() -> None:
    lane = Lane("hung")
    started, may_end = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        may_end.wait(WAIT_S)

    future = lane.submit(hang)
    assert started.wait(WAIT_S)
    lane.abandon(RunFailedError("stalled"))

    with anyio.fail_after(WAIT_S), pytest.raises(RunFailedError, match="stalled"):
        await wait_for_all([future])
    may_end.set()


async def test_nothing_runs_on_an_abandoned_lane_and_nothing_waits_for_it() -> None:
    lane, may_end = Lane("hung"), threading.Event()
    lane.submit(may_end.wait, WAIT_S)
    while lane.silent_s() == 0.0:
        await anyio.lowlevel.checkpoint()
    lane.abandon(RunFailedError("stalled"))

    assert lane.is_abandoned
    with anyio.fail_after(WAIT_S), pytest.raises(RunFailedError, match="stalled"):
        await lane.run(int, "7")
    assert not lane.close(WAIT_S)
    may_end.set()


async def test_silence_is_counted_only_while_a_call_is_under_way(lane: Lane) -> None:
    started, may_end = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        may_end.wait(WAIT_S)

    assert lane.silent_s() == 0.0
    future = lane.submit(hang)
    assert started.wait(WAIT_S)
    first = lane.silent_s()
    assert lane.silent_s() > first >= 0.0
    lane.beat()
    may_end.set()
    await wait_for_all([future])
    await lane.run(int)
    assert lane.close(WAIT_S)
    assert lane.silent_s() == 0.0


async def test_a_stack_dump_shows_where_a_lane_hangs(lane: Lane) -> None:
    started, may_end = threading.Event(), threading.Event()

    def conspicuous_function_name() -> None:
        started.set()
        may_end.wait(WAIT_S)

    future = lane.submit(conspicuous_function_name)
    assert started.wait(WAIT_S)
    assert "conspicuous_function_name" in lane_stacks([lane])["lane-0"]
    may_end.set()
    await wait_for_all([future])


async def test_a_lane_that_waits_for_a_batch_is_not_silent_and_neither_is_its_feeder() -> None:
    stop = StopFlag()
    lane, feeder = Lane("lane"), Lane("feeder")
    empty, full = BatchStream[int](1, stop), BatchStream[int](1, stop)
    waiting = [lane.submit(empty.get), feeder.submit(feed, range(5), [full])]

    for waiter in (lane, feeder):
        while waiter.silent_s() == 0.0:
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(WAIT_S):
            before_s = waiter.silent_s()
            while waiter.silent_s() >= before_s:
                before_s = waiter.silent_s()
                await anyio.lowlevel.checkpoint()

    stop.set("enough")
    for future in waiting:
        with anyio.fail_after(WAIT_S), pytest.raises(InterruptedRunError):
            await wait_for_all([future])
    assert lane.close(WAIT_S)
    assert feeder.close(WAIT_S)


async def test_every_lane_gets_every_batch_in_order() -> None:
    stop = StopFlag()
    lanes = [Lane(f"lane-{index}") for index in range(3)]
    feeder = Lane("feeder")
    streams: list[BatchStream[int]] = [BatchStream(2, stop) for _ in lanes]

    def drain(stream: BatchStream[int]) -> list[int]:
        return list(iter(stream.get, None))

    futures = [lane.submit(drain, stream) for lane, stream in zip(lanes, streams, strict=True)]
    assert await feeder.run(feed, range(50), streams) == 50
    assert await wait_for_all(futures) == [list(range(50))] * 3
    for lane in (*lanes, feeder):
        assert lane.close(WAIT_S)


async def test_the_feeder_is_never_further_ahead_than_the_bound() -> None:
    stop = StopFlag()
    feeder = Lane("feeder")
    stream: BatchStream[int] = BatchStream(3, stop)
    drawn: list[int] = []

    def batches() -> Iterator[int]:
        for index in range(20):
            drawn.append(index)
            yield index

    future = feeder.submit(feed, batches(), [stream])
    for index in range(20):
        assert stream.get() == index
        # One more may be in the feeder's hand, waiting for room.
        assert len(drawn) <= index + 1 + 3 + 1
    assert stream.get() is None
    assert await wait_for_all([future]) == [20]
    assert feeder.close(WAIT_S)


async def test_a_stop_ends_every_wait_for_a_batch_or_for_room() -> None:
    stop = StopFlag()
    lane, feeder = Lane("lane"), Lane("feeder")
    empty: BatchStream[int] = BatchStream(1, stop)
    full: BatchStream[int] = BatchStream(1, stop)
    waiting = [lane.submit(empty.get), feeder.submit(feed, range(5), [full])]

    stop.set("SIGINT")
    stop.set("a later reason")

    for future in waiting:
        with anyio.fail_after(WAIT_S), pytest.raises(InterruptedRunError, match="SIGINT"):
            await wait_for_all([future])
    assert lane.close(WAIT_S)
    assert feeder.close(WAIT_S)
