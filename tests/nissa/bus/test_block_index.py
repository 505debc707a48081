"""The index over a log: filtered reading skips what cannot match, and nothing else."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nissa.making import RUN_ID, pruned

from esper.leyline.live import Subscription
from esper.leyline.payloads import CheckpointSaved
from esper.leyline.telemetry import Draft, EventScope, Severity
from esper.nissa.bus import block_index
from esper.nissa.bus.block_index import BlockIndex
from esper.nissa.bus.event_filter import EventFilter
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.bus.log_reader import LogReader

WAIT_S = 20.0
SAVED = CheckpointSaved(
    rounds_completed=0, log_seq=0, is_best=False, path="round-000000.pt", num_bytes=1
)


def drafts(choices: list[tuple[bool, int | None, Severity]]) -> list[Draft]:
    return [
        Draft(SAVED if is_rare else pruned(), EventScope(env_id=env_id), severity)
        for is_rare, env_id, severity in choices
    ]


events = st.tuples(
    st.booleans(),
    st.none() | st.integers(0, 3) | st.just(100_000),
    st.sampled_from([Severity.INFO, Severity.ERROR]),
)
subscriptions = st.builds(
    Subscription,
    types=st.none() | st.lists(st.sampled_from(["SEED_PRUNED", "CHECKPOINT_SAVED"]), max_size=2),
    env_ids=st.none() | st.lists(st.integers(0, 4) | st.just(100_000), max_size=2),
    min_severity=st.none() | st.sampled_from(["info", "error"]),
)


def matches_by_index(index: BlockIndex, hub: TelemetryHub, wanted: EventFilter) -> list[bytes]:
    found: list[bytes] = []
    reader, seq = LogReader(hub.live.log), 0
    while (page := reader.read(index.next_match(seq, wanted), max_bytes=500)) is not None:
        found += wanted.lines(page)
        seq = page.next_seq
    return found


@settings(max_examples=40, deadline=None)
@given(choices=st.lists(events, min_size=1, max_size=60), subscription=subscriptions)
def test_reading_by_the_index_finds_what_reading_everything_finds(
    choices: list[tuple[bool, int | None, Severity]],
    subscription: Subscription,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("log")
    wanted = EventFilter(subscription)
    with pytest.MonkeyPatch.context() as patch, TelemetryHub(folder, run_id=RUN_ID) as hub:
        patch.setattr(block_index, "SPAN_BYTES", 300)
        index = BlockIndex(hub.live.log)
        for start in range(0, len(choices), 7):  # the index grows with the log
            hub.publish(drafts(choices[start : start + 7]))
            hub.flush(WAIT_S)
            index.catch_up()
        lines = (folder / "events.jsonl").read_bytes().splitlines()

        found = matches_by_index(index, hub, wanted)

        assert found == [line for line in lines if wanted.passes(line)]


class CountingReader(LogReader):
    """Counts the bytes that are read."""

    num_bytes = 0

    def _read_next(self, max_bytes: int) -> object:
        page = super()._read_next(max_bytes)
        CountingReader.num_bytes += 0 if page is None else len(page.data)
        return page


def test_search_for_a_rare_event_reads_the_log_once_however_often_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_index, "LogReader", CountingReader)
    monkeypatch.setattr(CountingReader, "num_bytes", 0)
    wanted = EventFilter(Subscription(types=["CHECKPOINT_SAVED"]))
    with TelemetryHub(tmp_path, run_id=RUN_ID) as hub:
        hub.publish([Draft(pruned())] * 3_000)
        hub.emit(SAVED)
        hub.publish([Draft(pruned())] * 3_000)
        hub.flush(WAIT_S)
        log = hub.live.log
        monkeypatch.setattr(block_index, "SPAN_BYTES", log.num_bytes // 20)
        index, reader = BlockIndex(log), LogReader(log)
        index.catch_up()
        assert CountingReader.num_bytes == log.num_bytes
        for _ in range(50):
            found, num_read, seq = 0, 0, 0
            while (page := reader.read(index.next_match(seq, wanted), 1_000)) is not None:
                found += len(wanted.lines(page))
                num_read += len(page.data)
                seq = page.next_seq
            assert found == 1
            assert num_read < log.num_bytes / 5
    assert CountingReader.num_bytes == log.num_bytes


def test_damaged_line_matches_no_filter_and_stops_no_reader() -> None:
    wanted = EventFilter(Subscription(types=["SEED_PRUNED"]))
    assert not wanted.passes(b"\xff not an event")
    assert not wanted.passes(b'{"event_type":1}')
    assert not wanted.passes(b"[" * 100_000)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_reader_of_a_log_that_shrank_ends(tmp_path: Path, share: float) -> None:
    with TelemetryHub(tmp_path, run_id=RUN_ID) as hub:
        hub.publish([Draft(pruned())] * 10)
    path = tmp_path / "events.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(OSError, match="not what was committed"):
        LogReader(_Shrunk(path, len(whole))).read(9, 100)


class _Shrunk(msgspec.Struct):
    """A log whose committed part is no longer there."""

    path: Path
    num_bytes: int

    def offset_before(self, seq: int) -> tuple[int, int]:
        return 0, 0
