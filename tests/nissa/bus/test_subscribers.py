"""Live subscribers: replay, going live, gaps, filters."""

import os
import threading
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nissa.making import RUN_ID, block, line, pruned, read_events, wait_until

from esper.leyline.errors import UsageError
from esper.leyline.live import Gap, Subscription
from esper.leyline.telemetry import Draft, EventScope, decode_event
from esper.nissa.bus.event_filter import EventFilter, parse_subscription
from esper.nissa.bus.feed import FEED_BYTES
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.bus.log_reader import LogReader
from esper.nissa.bus.subscribers import Subscriber
from esper.nissa.storage.blocks import Block

WAIT_S = 20.0


def seqs_of(page: Block) -> list[int]:
    found = [decode_event(text).seq for text in page.lines()]
    assert found == list(range(page.first_seq, page.next_seq))
    return found


async def read_to_end(subscriber: Subscriber) -> tuple[list[int], list[Gap]]:
    received: list[int] = []
    gaps: list[Gap] = []
    with anyio.fail_after(WAIT_S):
        while (page := await subscriber.next()) is not None:
            if isinstance(page, Gap):
                gaps.append(page)
            else:
                received += seqs_of(page)
    return received, gaps


@given(first=st.integers(0, 9), seq=st.integers(0, 25), num_events=st.integers(1, 10))
def test_block_from_a_seq_holds_exactly_the_rest(first: int, seq: int, num_events: int) -> None:
    whole = block(first, num_events)
    if seq <= whole.next_seq:
        rest = whole.from_seq(seq)
        assert seqs_of(rest) == list(range(max(first, seq), whole.next_seq))


def test_reader_finds_any_event_and_stops_at_the_committed_end(tmp_path: Path) -> None:
    with TelemetryHub(tmp_path, run_id=RUN_ID) as hub:
        hub.publish(Draft(pruned(age_steps=number)) for number in range(2_000))
        hub.flush(WAIT_S)
        with (tmp_path / "events.jsonl").open("ab") as file:
            file.write(b'{"half a line')
        for seq in (0, 1, 777, 1_999):
            page = LogReader(hub.live.log).read(seq, max_bytes=4_000)
            assert page is not None
            assert seqs_of(page)[0] == seq
        reader, received = LogReader(hub.live.log), 0
        while (page := reader.read(received, max_bytes=100)) is not None:
            received += len(seqs_of(page))
        os.truncate(tmp_path / "events.jsonl", hub.live.log.num_bytes)
        assert received == 2_000


@pytest.mark.anyio
async def test_replay_goes_live_without_gap_or_duplicate_while_a_producer_runs(
    tmp_path: Path,
) -> None:
    hub = TelemetryHub(tmp_path, run_id=RUN_ID)
    hub.publish(Draft(pruned("history")) for _ in range(3_000))
    hub.flush(WAIT_S)
    has_caught_up = threading.Event()

    def produce() -> None:
        number = 0
        while not has_caught_up.is_set() or number < 2_000:
            hub.emit(pruned("live", age_steps=number))
            number += 1
            # In step with the disk, so that no subscriber falls a whole feed behind.
            if number % 50 == 0:
                hub.flush(WAIT_S)
        hub.close()

    producer = threading.Thread(target=produce)
    producer.start()
    received: dict[int, list[int]] = {0: [], 1_234: []}
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            for since in received:
                tasks.start_soon(collect, hub, since, received[since])
            await anyio.to_thread.run_sync(
                wait_until, lambda: min(len(found) for found in received.values()) >= 4_000
            )
            has_caught_up.set()
    producer.join(WAIT_S)

    num_events = len(read_events(tmp_path / "events.jsonl"))
    for since, found in received.items():
        assert found == list(range(since, num_events))


async def collect(hub: TelemetryHub, since: int, found: list[int]) -> None:
    """Read to the end, counting a gap as a failure."""
    subscriber = hub.live.subscribe(since)
    while (page := await subscriber.next()) is not None:
        assert isinstance(page, Block), page
        found += seqs_of(page)


@pytest.mark.anyio
async def test_subscriber_that_stops_reading_learns_exactly_what_it_missed(tmp_path: Path) -> None:
    hub = TelemetryHub(tmp_path, run_id=RUN_ID)
    subscriber = hub.live.subscribe(0)
    hub.emit(pruned())
    first = await subscriber.next()
    assert isinstance(first, Block)

    num_events = 3 * FEED_BYTES // len(line(0))
    await anyio.to_thread.run_sync(hub.publish, [Draft(pruned())] * num_events)
    await anyio.to_thread.run_sync(hub.flush)
    held = hub.live.feed.read(hub.live.feed.oldest_seq, 10**9)
    assert held is not None
    assert len(held.data) <= FEED_BYTES
    gap = await subscriber.next()
    assert isinstance(gap, Gap)
    await anyio.to_thread.run_sync(hub.close)
    rest, more_gaps = await read_to_end(subscriber)

    assert gap.first_seq == first.next_seq
    assert gap.num_dropped == gap.last_seq - gap.first_seq + 1 == subscriber.num_dropped
    assert more_gaps == []
    assert rest == list(range(gap.last_seq + 1, num_events + 1))
    [lagged] = read_events(tmp_path / "operational.jsonl")
    assert msgspec.structs.asdict(lagged.data) == {
        "subscriber": "live-1",
        "num_dropped": gap.num_dropped,
        "first_dropped_seq": gap.first_seq,
        "last_dropped_seq": gap.last_seq,
    }


@pytest.mark.anyio
async def test_statistics_count_what_each_subscriber_got(tmp_path: Path) -> None:
    hub = TelemetryHub(tmp_path, run_id=RUN_ID)
    subscriber = hub.live.subscribe(0)
    hub.publish([Draft(pruned())] * 3)
    await anyio.to_thread.run_sync(hub.flush)

    assert hub.statistics.sinks["live-1"].lag == 3
    page = await subscriber.next()
    assert isinstance(page, Block)
    assert hub.statistics.sinks["live-1"].lag == 3 - page.num_events
    assert hub.statistics.sinks["live-1"].written == page.num_events
    hub.live.unsubscribe(subscriber)
    assert "live-1" not in hub.statistics.sinks
    await anyio.to_thread.run_sync(hub.close)


@pytest.mark.parametrize(
    ("subscription", "expected"),
    [
        (Subscription(), [0, 1, 2, 3]),
        (Subscription(types=["SEED_PRUNED"]), [0, 1, 2, 3]),
        (Subscription(types=["EPOCH_COMPLETED"]), []),
        (Subscription(env_ids=[1, 9]), [0, 2]),
        (Subscription(min_severity="warning"), []),
        (Subscription(min_severity="info", env_ids=[2]), [0, 3]),
    ],
)
def test_filter_lets_through_what_was_asked_for(
    subscription: Subscription, expected: list[int]
) -> None:
    lines = [line(seq, env_id) for seq, env_id in enumerate([None, 0, 1, 2])]
    passed = EventFilter(subscription).lines(Block(0, 4, b"".join(lines)))

    assert [decode_event(text).seq for text in passed] == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a subscription"),
        ("[]", "not a subscription"),
        ('{"since":"0"}', "not a subscription"),
        ('{"sinec":0}', "unknown field `sinec`"),
        ('{"since":-1}', "must not be negative"),
        ('{"types":["EPOCH_COMPLETE"]}', "did you mean 'EPOCH_COMPLETED'"),
        ('{"min_severity":"loud"}', "unknown severity 'loud'"),
        ("[" * 10_000, "not a subscription"),
    ],
)
def test_subscription_that_cannot_be_used_says_why(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_subscription(text)


VALID = b'{"types":["SEED_PRUNED"],"env_ids":[1,2],"min_severity":"info","since":3,"batch":true}'


@given(
    position=st.integers(0, len(VALID)),
    num_cut=st.integers(0, 12),
    inserted=st.binary(max_size=8) | st.text(max_size=8).map(str.encode),
)
@settings(max_examples=400, deadline=None)
def test_mutated_subscription_is_read_or_refused(
    position: int, num_cut: int, inserted: bytes
) -> None:
    text = VALID[:position] + inserted + VALID[position + num_cut :]
    try:
        subscription = parse_subscription(text)
    except UsageError:
        return
    assert subscription.since is None or subscription.since >= 0


def test_events_of_no_env_pass_an_env_filter(tmp_path: Path) -> None:
    wanted = EventFilter(Subscription(env_ids=[3]))
    assert wanted.passes(line(0, None))
    assert wanted.passes(line(0, 3))
    assert not wanted.passes(line(0, 0))
    assert EventScope().env_id is None
