"""The feed: its bound, reading from any seq, and waking those that wait."""

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nissa.making import block, line

from esper.nissa.bus.feed import LiveFeed

WAIT_S = 20.0


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    seq=st.integers(0, 25),
    max_bytes=st.integers(1, 5_000),
)
def test_read_returns_a_run_of_events_from_the_seq(
    sizes: list[int], seq: int, max_bytes: int
) -> None:
    feed = LiveFeed(next_seq=0)
    for size in sizes:
        feed.publish(block(feed.next_seq, size))

    page = feed.read(seq, max_bytes)

    if seq >= sum(sizes):
        assert page is None
    else:
        assert page is not None
        assert page.first_seq == seq
        assert page.num_events > 0
        assert page.data == b"".join(line(number) for number in range(seq, page.next_seq))
        if max_bytes > sum(len(line(number)) for number in range(sum(sizes))):
            assert page.next_seq == sum(sizes)


def test_feed_drops_its_oldest_blocks_at_the_bound() -> None:
    feed = LiveFeed(next_seq=0, max_bytes=3 * len(block(0, 2).data))
    for first_seq in range(0, 8, 2):
        feed.publish(block(first_seq, 2))

    assert (feed.oldest_seq, feed.next_seq) == (2, 8)
    assert feed.read(1, 10**6) is None
    page = feed.read(3, 10**6)
    assert page is not None
    assert page.data == b"".join(map(line, range(3, 8)))


def test_feed_keeps_a_block_that_alone_is_over_the_bound() -> None:
    feed = LiveFeed(next_seq=0, max_bytes=1)
    feed.publish(block(0, 5))
    assert feed.oldest_seq == 0


def test_closed_feed_can_still_be_read() -> None:
    feed = LiveFeed(next_seq=3)
    feed.publish(block(3, 2))
    feed.close(is_complete=False)

    assert feed.is_closed
    assert not feed.is_complete
    assert feed.read(3, 10**6) == block(3, 2)


@pytest.mark.anyio
async def test_block_from_another_thread_wakes_those_that_wait_for_it() -> None:
    feed = LiveFeed(next_seq=0)
    woken: list[int] = []

    async def wait_for(seq: int) -> None:
        await feed.wait_for(seq)
        woken.append(seq)

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            for seq in (0, 1, 2):
                tasks.start_soon(wait_for, seq)
            await anyio.wait_all_tasks_blocked()
            await anyio.to_thread.run_sync(feed.publish, block(0, 2))
            await anyio.wait_all_tasks_blocked()
            assert sorted(woken) == [0, 1]
            await anyio.to_thread.run_sync(feed.close)
    assert sorted(woken) == [0, 1, 2]


@pytest.mark.anyio
async def test_wait_for_the_end_outlasts_blocks() -> None:
    feed = LiveFeed(next_seq=0)
    has_ended = anyio.Event()

    async def wait_closed() -> None:
        await feed.wait_closed()
        has_ended.set()

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_closed)
            await anyio.wait_all_tasks_blocked()
            feed.publish(block(0, 1))
            await anyio.wait_all_tasks_blocked()
            assert not has_ended.is_set()
            feed.close()
        await feed.wait_closed()
    assert has_ended.is_set()
