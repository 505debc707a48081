"""The feed takes every event once, in order, from a log that grows."""

import threading
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.karn.runs import append_lines, has_read, write_run
from tests.karn.story import Story, Wire
from tests.nissa.making import wait_until

from esper.karn.view.followed_log import FollowedLog, follow, open_source
from esper.karn.view.view_feed import ViewFeed, read_run
from esper.karn.view.view_model import ViewModel
from esper.leyline import payloads
from esper.leyline.config import TelemetryConfig
from esper.leyline.telemetry import Event, encode_event
from esper.nissa.bus.hub import TelemetryHub

LINES = list(Story(num_rounds=2, num_steps=6).lines())


class Witness:
    """Remembers events and wakes the task that waits for the n-th of them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._counted = threading.Condition()

    def on_event(self, event: Event) -> None:
        with self._counted:
            self.events.append(event)
            self._counted.notify_all()

    async def wait_for(self, num_events: int) -> None:
        assert await anyio.to_thread.run_sync(self._wait, num_events), "events never arrived"

    def _wait(self, num_events: int) -> bool:
        with self._counted:
            return self._counted.wait_for(lambda: len(self.events) >= num_events, timeout=20)


@pytest.mark.anyio
async def test_growing_log_is_followed_event_by_event(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, LINES[:10])
    witness = Witness()
    source = open_source(run_dir)
    feed = ViewFeed(source, run_dir, listeners=[witness.on_event])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow, source)
        tasks.start_soon(feed.run)
        await witness.wait_for(10)
        append_lines(run_dir, LINES[10:])
        await witness.wait_for(len(LINES))
        tasks.cancel_scope.cancel()
    assert [event.seq for event in witness.events] == list(range(len(LINES)))
    assert feed.snapshot().bus.num_missed == 0


@pytest.mark.anyio
async def test_live_hub_feeds_the_view_until_it_closes(tmp_path: Path) -> None:
    events = list(Story(num_rounds=1, num_steps=6).events())
    hub = TelemetryHub(tmp_path, run_id="5eed0001", config=TelemetryConfig(level="debug"))
    feed = ViewFeed(hub.live, tmp_path)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.run)
            for event in events:
                hub.emit(event.data, severity=event.severity)
            await anyio.to_thread.run_sync(hub.close)
    assert feed.snapshot().bus.num_events == len(events)
    assert feed.snapshot().progress.status == "completed"


@pytest.mark.anyio
async def test_view_of_a_log_that_is_gone_stays_as_it_is(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, LINES)
    source = open_source(run_dir)
    assert isinstance(source.log, FollowedLog)
    while (block := source.log.read_more()) is not None:
        source.feed.publish(block)
    feed = ViewFeed(source, run_dir)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.run)
            await anyio.to_thread.run_sync(wait_until, partial(has_read, feed, len(LINES)))
            (run_dir / "events.jsonl").unlink()
            source.log.num_bytes += 1
            source.feed.close()
    assert feed.is_over
    assert feed.snapshot().bus.num_events == len(LINES)


def test_directory_read_at_once_shows_what_the_feed_shows(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, LINES)
    model = ViewModel()
    for event in Story(num_rounds=2, num_steps=6).events():
        model.apply(event)
    assert read_run(run_dir).snapshot() == model.snapshot()


def test_unreadable_line_is_counted_and_does_not_stop_the_view(tmp_path: Path) -> None:
    lines = [*LINES[:5], b'{"event_type":"NO_SUCH_EVENT"}', *LINES[5:]]
    view = read_run(write_run(tmp_path, lines)).snapshot()
    assert view.bus.num_unreadable == 1
    assert view.bus.num_events == len(LINES)
    assert view.verdict.attention == "act"


def test_operational_events_are_part_of_the_view(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, LINES)
    lagged = payloads.SubscriberLagged(
        subscriber="live-1", num_dropped=3, first_dropped_seq=1, last_dropped_seq=3
    )
    line = encode_event(Wire().event(lagged, is_operational=True))
    (run_dir / "operational.jsonl").write_bytes(line + b"\n")
    assert read_run(run_dir).snapshot().bus.num_dropped == 3
