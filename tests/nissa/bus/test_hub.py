"""The hub: numbering, levels, back-pressure, failure, closing."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.nissa.making import (
    RUN_ID,
    FailingFiles,
    checkpoint_loaded,
    epoch,
    observation_stats,
    pruned,
    read_events,
    seqs,
    wait_until,
)

from esper.leyline.config import FsyncPolicy, TelemetryConfig
from esper.leyline.errors import ContractError, TelemetryLostError
from esper.leyline.payloads import SeedPruned
from esper.leyline.telemetry import Draft, EventScope, EventType, Severity, TelemetryLevel
from esper.nissa.bus.hub import TelemetryHub, get_hub, use_hub
from esper.nissa.storage.files import FileSystem

WAIT_S = 20.0


def hub_in(run_dir: Path, **options: object) -> TelemetryHub:
    return TelemetryHub(run_dir, run_id=RUN_ID, **options)  # type: ignore[arg-type]


class StallingFiles(FileSystem):
    """A disk that takes nothing until it is let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.reached = threading.Event()

    def write(self, descriptor: int, data: bytes) -> None:
        self.reached.set()
        assert self.gate.wait(WAIT_S)
        super().write(descriptor, data)


class CountingFiles(FileSystem):
    """A disk that counts how often it is synced."""

    def __init__(self) -> None:
        self.num_syncs = 0
        self.synced = threading.Event()

    def fsync(self, descriptor: int) -> None:
        self.num_syncs += 1
        super().fsync(descriptor)
        self.synced.set()


@contextlib.contextmanager
def in_threads(targets: list[threading.Thread]) -> Iterator[None]:
    for thread in targets:
        thread.start()
    try:
        yield
    finally:
        for thread in targets:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_many_producers_lose_nothing_and_keep_their_order(tmp_path: Path) -> None:
    num_producers, num_each = 8, 400
    returned: dict[str, list[int | None]] = {f"p{index}": [] for index in range(num_producers)}

    def produce(name: str) -> None:
        for number in range(num_each):
            returned[name].append(hub.emit(pruned(name, age_steps=number)))

    hub = hub_in(tmp_path)
    with in_threads([threading.Thread(target=produce, args=(name,)) for name in returned]):
        pass
    statistics = hub.close()

    events = read_events(tmp_path / "events.jsonl")
    assert seqs(events) == list(range(num_producers * num_each))
    for name, its_seqs in returned.items():
        payloads = [(event.seq, event.data) for event in events]
        mine = [
            (seq, data.age_steps)
            for seq, data in payloads
            if isinstance(data, SeedPruned) and data.slot_id == name
        ]
        assert mine == list(zip(its_seqs, range(num_each), strict=True))
    assert statistics.emitted == len(events)
    assert statistics.sinks["events.jsonl"].written == len(events)
    assert statistics.sinks["events.jsonl"].lag == 0


def test_event_carries_what_its_producer_said(tmp_path: Path) -> None:
    with hub_in(tmp_path, group="cohort") as hub:
        hub.emit(epoch(float("nan")), EventScope(1, 2, 3, 4), Severity.ERROR)

    [event] = read_events(tmp_path / "events.jsonl")
    assert (event.round, event.step, event.env_id, event.episode_id) == (1, 2, 3, 4)
    assert (event.group, event.run_id, event.severity) == ("cohort", RUN_ID, Severity.ERROR)
    assert event.nonfinite == ("train_loss", "val_loss")


def test_operational_events_have_a_file_and_a_counter_of_their_own(tmp_path: Path) -> None:
    with hub_in(tmp_path) as hub:
        assert [hub.emit(pruned()), hub.emit(checkpoint_loaded()), hub.emit(pruned())] == [0, 0, 1]

    assert seqs(read_events(tmp_path / "events.jsonl")) == [0, 1]
    assert seqs(read_events(tmp_path / "operational.jsonl")) == [0]


def test_both_counters_go_on_after_reopening(tmp_path: Path) -> None:
    for _ in range(2):
        with hub_in(tmp_path) as hub:
            hub.emit(pruned())
            hub.emit(checkpoint_loaded())

    assert seqs(read_events(tmp_path / "events.jsonl")) == [0, 1]
    assert seqs(read_events(tmp_path / "operational.jsonl")) == [0, 1]


def test_type_below_the_level_takes_no_seq(tmp_path: Path) -> None:
    with hub_in(tmp_path, config=TelemetryConfig(level="minimal")) as hub:
        assert hub.emit(pruned()) is None
        hub.publish([Draft(pruned()), Draft(checkpoint_loaded())])
        assert not hub.wants(EventType.SEED_PRUNED)
        assert hub.wants(EventType.EPISODE_OUTCOME)

    assert read_events(tmp_path / "events.jsonl") == []
    assert len(read_events(tmp_path / "operational.jsonl")) == 1


def test_escalation_lets_debug_events_through_while_it_lasts(tmp_path: Path) -> None:
    with hub_in(tmp_path) as hub:
        before = hub.emit(observation_stats())
        hub.escalate_to(TelemetryLevel.DEBUG)
        during = hub.emit(observation_stats())
        hub.escalate_to(None)
        after = hub.emit(observation_stats())

    assert (before, during, after) == (None, 0, None)


def test_lifecycle_only_leaves_the_seeds_of_a_step(tmp_path: Path) -> None:
    with hub_in(tmp_path, config=TelemetryConfig(lifecycle_only=True)) as hub:
        assert hub.emit(epoch()) is None
        assert hub.emit(pruned()) == 0


def test_flush_has_everything_emitted_before_it_on_disk(tmp_path: Path) -> None:
    files = CountingFiles()
    hub = hub_in(tmp_path, files=files)
    hub.publish(Draft(pruned()) for _ in range(100))

    hub.flush(WAIT_S)

    assert len(read_events(tmp_path / "events.jsonl")) == 100
    assert files.num_syncs >= 2
    hub.close()


def test_policy_never_leaves_syncing_to_the_system(tmp_path: Path) -> None:
    files = CountingFiles()
    with hub_in(tmp_path, files=files, fsync=FsyncPolicy.NEVER) as hub:
        hub.emit(pruned())
        hub.flush(WAIT_S)
        assert len(read_events(tmp_path / "events.jsonl")) == 1
    assert files.num_syncs == 0


def test_policy_interval_syncs_unasked(tmp_path: Path) -> None:
    files = CountingFiles()
    with hub_in(tmp_path, files=files, fsync=FsyncPolicy.INTERVAL, fsync_interval_s=0.01) as hub:
        hub.emit(pruned())
        assert files.synced.wait(WAIT_S)


def test_policy_round_waits_for_the_flush(tmp_path: Path) -> None:
    files = CountingFiles()
    with hub_in(tmp_path, files=files, fsync_interval_s=0.0) as hub:
        hub.emit(pruned())
        wait_until(lambda: hub.statistics.sinks["events.jsonl"].lag == 0)
        assert files.num_syncs == 0
        hub.flush(WAIT_S)
        assert files.num_syncs == 2


def test_worker_thread_waits_at_the_bound_until_the_writer_has_caught_up(tmp_path: Path) -> None:
    files = StallingFiles()
    hub = hub_in(tmp_path, files=files, max_queued_bytes=2_000)
    is_done = threading.Event()

    def produce() -> None:
        for _ in range(50):
            hub.emit(pruned())
        is_done.set()

    with in_threads([threading.Thread(target=produce)]):
        assert files.reached.wait(WAIT_S)
        assert not is_done.wait(0.05)
        assert hub.statistics.emitted < 50
        files.gate.set()
        assert is_done.wait(WAIT_S)
    hub.close()
    assert seqs(read_events(tmp_path / "events.jsonl")) == list(range(50))


@pytest.mark.anyio
async def test_event_loop_is_not_blocked_at_the_bound_and_room_waits(tmp_path: Path) -> None:
    files = StallingFiles()
    hub = hub_in(tmp_path, files=files, max_queued_bytes=2_000)
    await hub.room()
    for _ in range(50):
        hub.emit(pruned())
    with anyio.move_on_after(0.05) as scope:
        await hub.room()
    assert scope.cancelled_caught
    files.gate.set()
    with anyio.fail_after(WAIT_S):
        await hub.room()
    await anyio.to_thread.run_sync(hub.close)
    assert len(read_events(tmp_path / "events.jsonl")) == 50


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_failing_disk_is_reported_by_flush_and_close_and_keeps_what_was_written(
    tmp_path: Path, code: int
) -> None:
    files = FailingFiles()
    hub = hub_in(tmp_path, files=files)
    hub.emit(pruned())
    hub.flush(WAIT_S)
    files.write_error = code
    hub.emit(pruned())

    with pytest.raises(TelemetryLostError, match=rf"events\.jsonl: .*\(errno {code}\).* is 0"):
        hub.flush(WAIT_S)

    assert hub.failure is not None
    assert hub.failure.exit_code == 3
    assert hub.emit(pruned()) == 2
    assert hub.statistics.sinks["events.jsonl"].dropped == 2
    with pytest.raises(TelemetryLostError):
        hub.close()
    assert seqs(read_events(tmp_path / "events.jsonl")) == [0]


def test_failing_fsync_is_a_failure(tmp_path: Path) -> None:
    files = FailingFiles()
    hub = hub_in(tmp_path, files=files)
    hub.emit(pruned())
    files.fsync_error = errno.EIO
    with pytest.raises(TelemetryLostError, match="errno 5"):
        hub.flush(WAIT_S)


def test_removed_run_directory_is_a_failure(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    hub = hub_in(run_dir)
    hub.emit(pruned())
    hub.flush(WAIT_S)
    shutil.rmtree(run_dir)
    hub.emit(pruned())

    with pytest.raises(TelemetryLostError, match=r"was removed .* is 0"):
        hub.flush(WAIT_S)


def test_change_of_a_log_that_is_rarely_written_is_noticed_at_the_next_flush(
    tmp_path: Path,
) -> None:
    hub = hub_in(tmp_path)
    (tmp_path / "operational.jsonl").write_text("foreign\n")
    hub.emit(pruned())

    with pytest.raises(TelemetryLostError, match=r"operational\.jsonl.*changed by another process"):
        hub.flush(WAIT_S)


@pytest.mark.anyio
async def test_room_raises_the_failure(tmp_path: Path) -> None:
    files = FailingFiles()
    hub = hub_in(tmp_path, files=files)
    files.write_error = errno.ENOSPC
    hub.emit(pruned())
    with pytest.raises(TelemetryLostError):
        hub.flush(WAIT_S)
    with pytest.raises(TelemetryLostError):
        await hub.room()


def test_waiting_producers_go_on_when_the_disk_dies(tmp_path: Path) -> None:
    class DyingFiles(StallingFiles):
        def write(self, descriptor: int, data: bytes) -> None:
            self.reached.set()
            assert self.gate.wait(WAIT_S)
            raise OSError(errno.EIO, "dead")

    files = DyingFiles()
    hub = hub_in(tmp_path, files=files, max_queued_bytes=2_000)

    def produce() -> None:
        for _ in range(50):
            hub.emit(pruned())

    with in_threads([threading.Thread(target=produce) for _ in range(3)]):
        assert files.reached.wait(WAIT_S)
        files.gate.set()
    assert hub.statistics.emitted == 150


def test_event_that_cannot_be_encoded_is_a_failure_behind_whole_events(tmp_path: Path) -> None:
    hub = hub_in(tmp_path)
    hub.publish([Draft(pruned("good")), Draft(pruned("\ud800")), Draft(pruned())])

    with pytest.raises(TelemetryLostError, match="event 1 cannot be encoded"):
        hub.close()

    assert seqs(read_events(tmp_path / "events.jsonl")) == [0]


def test_close_says_what_it_could_not_deliver_in_time(tmp_path: Path) -> None:
    files = StallingFiles()
    hub = hub_in(tmp_path, files=files)
    hub.publish(Draft(pruned()) for _ in range(3))

    with pytest.raises(TelemetryLostError, match=r"3 events not written within 0\.02 s"):
        hub.close(deadline_s=0.02)

    files.gate.set()
    hub.close()


def test_flush_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    files = StallingFiles()
    hub = hub_in(tmp_path, files=files)
    hub.emit(pruned())
    with pytest.raises(TelemetryLostError, match="not on disk within"):
        hub.flush(timeout_s=0.02)
    files.gate.set()
    hub.close()


def test_close_delivers_exactly_what_was_accepted_while_producers_go_on(tmp_path: Path) -> None:
    hub = hub_in(tmp_path)
    accepted: list[int | None] = []
    refusals: list[str] = []
    has_begun = threading.Barrier(5)

    def produce() -> None:
        has_begun.wait(WAIT_S)
        try:
            while True:
                accepted.append(hub.emit(pruned()))
        except ContractError as error:
            refusals.append(str(error))

    with in_threads([threading.Thread(target=produce) for _ in range(4)]):
        has_begun.wait(WAIT_S)
        wait_until(lambda: len(accepted) >= 100)
        hub.close()

    assert len(refusals) == 4
    assert "the hub is closed" in refusals[0]
    assert sorted(seq for seq in accepted if seq is not None) == seqs(
        read_events(tmp_path / "events.jsonl")
    )


def test_two_hubs_in_one_process_share_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with hub_in(tmp_path / "a") as first, hub_in(tmp_path / "b") as second:
        first.emit(pruned("first"))
        second.emit(pruned("second"))
        assert get_hub() is second

    for name, tag in (("a", "first"), ("b", "second")):
        [event] = read_events(tmp_path / name / "events.jsonl")
        assert isinstance(event.data, SeedPruned)
        assert event.data.slot_id == tag


def test_hub_must_be_handed_to_a_thread_explicitly(tmp_path: Path) -> None:
    seen: list[object] = []

    def look(*, is_handed: bool) -> None:
        with use_hub(hub) if is_handed else contextlib.nullcontext():
            try:
                seen.append(get_hub())
            except ContractError as error:
                seen.append(str(error))

    with hub_in(tmp_path) as hub:
        for is_handed in (False, True):
            with in_threads([threading.Thread(target=look, kwargs={"is_handed": is_handed})]):
                pass

    assert "no hub is open here" in str(seen[0])
    assert seen[1] is hub
    with pytest.raises(ContractError):
        get_hub()


WRITE_FOREVER = """
import sys
from pathlib import Path
from tests.nissa.making import pruned
from esper.nissa.bus.hub import TelemetryHub

hub = TelemetryHub(Path(sys.argv[1]), run_id="0123abcd")
while True:
    for number in range(200):
        hub.emit(pruned(age_steps=number))
    hub.flush()
    print(hub.emit(pruned()), flush=True)
"""


def test_killed_writer_leaves_whole_lines_and_the_next_one_goes_on(tmp_path: Path) -> None:
    for num_rounds in (1, 3, 7):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOREVER, str(tmp_path)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout is not None
        flushed = [int(process.stdout.readline()) for _ in range(num_rounds)][-1]
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
        process.stdout.close()

        *whole, _ = (tmp_path / "events.jsonl").read_bytes().split(b"\n")
        assert len(whole) >= flushed
        with hub_in(tmp_path) as hub:
            assert hub.emit(pruned()) == len(whole)
        events = read_events(tmp_path / "events.jsonl")
        assert seqs(events) == list(range(len(whole) + 1))
