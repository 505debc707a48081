"""What checksums vouch for is counted as a parser would count it, and nothing else is."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nissa.fake_run import FakeRun
from tests.nissa.making import block, pruned, write_blocks

from esper.nissa.analysis import counting
from esper.nissa.analysis.counting import CountBy, CountTask, Tally, count_logs, count_part
from esper.nissa.analysis.validation import validate_log
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.reading import checksummed_blocks
from esper.nissa.reading.checksummed_blocks import log_parts
from esper.nissa.reading.lines import LOG_NAME
from esper.nissa.storage.blocks import Block, CommitRecord, checksum_path, read_records


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks vouch that are small enough for a test."""
    monkeypatch.setattr(checksummed_blocks, "MIN_LOG_PER_CHECKSUM", 0)


def sample_log(folder: Path) -> Path:
    """Write a log of five blocks of three events."""
    log = folder / LOG_NAME
    write_blocks(log, (block(seq, 3) for seq in range(0, 15, 3)))
    return log


def num_vouched(log: Path, start: int = 0, end: int | None = None) -> int:
    """Count the events that checksums vouch for."""
    return sum(part.num_events for part in log_parts(log, start, end))


def parsed(log: Path, by: CountBy = CountBy.TYPE) -> Tally:
    """Count the same bytes where no checksum vouches for them."""
    alone = log.with_name("alone.jsonl")
    alone.write_bytes(log.read_bytes())
    return count_part(CountTask(path=str(alone), by=by))


def test_log_of_a_hub_is_vouched_for_and_counted_like_any_other(tmp_path: Path) -> None:
    with TelemetryHub(tmp_path, run_id="0123abcd") as hub:
        for _ in range(20):
            hub.emit(pruned())
    log = tmp_path / LOG_NAME

    assert num_vouched(log) == 20
    assert count_part(CountTask(path=str(log))) == parsed(log)


@pytest.mark.parametrize("by", CountBy)
def test_counts_beside_a_block_are_those_of_its_lines(by: CountBy, tmp_path: Path) -> None:
    log = FakeRun().write(tmp_path) / LOG_NAME

    tally = count_part(CountTask(path=str(log), by=by))

    assert tally == parsed(log, by)
    assert len(tally.counts) > 1


def test_intact_block_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = sample_log(tmp_path)
    monkeypatch.setattr(counting, "_decode_heads", None)

    for by in (CountBy.TYPE, CountBy.ENV, CountBy.SEVERITY, CountBy.KIND):
        assert count_part(CountTask(path=str(log), by=by)).num_events == 15


def test_only_the_damaged_block_is_parsed(tmp_path: Path) -> None:
    log = sample_log(tmp_path)
    start, end = len(block(0, 3).data), len(block(0, 6).data)
    data = bytearray(log.read_bytes())
    data[start + 3] ^= 1
    log.write_bytes(data)

    parts = [part[:3] for part in log_parts(log, 0, None) if part.facts is None]

    assert parts == [(start, end, 0), (len(data), None, 0)]
    assert count_part(CountTask(path=str(log))) == parsed(log)


def test_lines_behind_the_last_block_are_parsed(tmp_path: Path) -> None:
    log = sample_log(tmp_path)
    with log.open("ab") as stream:
        stream.write(b'{"x":1,"event_type":"LATER"}\n{\n')

    tally = count_part(CountTask(path=str(log)))

    assert tally.counts == {"SEED_PRUNED": 15, "LATER": 1}
    assert [bad.line for bad in tally.bad_lines] == [17]


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_damaged_log_is_counted_as_a_parser_counts_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    log = sample_log(tmp_path_factory.mktemp("run"))
    target = data.draw(st.sampled_from([log, checksum_path(log)]))
    damaged = bytearray(target.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.sampled_from([*b'\n{}",0A', 0xFF]))
    target.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])

    assert count_part(CountTask(path=str(log))) == parsed(log)


def test_line_that_lost_its_end_takes_the_next_block_with_it(tmp_path: Path) -> None:
    log = sample_log(tmp_path)
    data = bytearray(log.read_bytes())
    data[len(block(0, 3).data) - 1] = ord(" ")
    log.write_bytes(data)

    tally = count_part(CountTask(path=str(log)))

    assert (tally.counts, tally.num_bad) == ({"SEED_PRUNED": 13}, 1)


@pytest.mark.parametrize(
    "data",
    [
        b'{"event_type":"A"}\n',
        b'{"event_type":1,"env_id":null,"severity":"info"}\n',
        b'{"event_type":"A","env_id":null,"severity":"info"}\n\n',
        b"[]\n",
    ],
)
def test_lines_that_are_no_events_have_no_counts(data: bytes, tmp_path: Path) -> None:
    log = tmp_path / LOG_NAME
    write_blocks(log, [Block(0, data.count(b"\n"), data)])

    assert num_vouched(log) == 0


def test_log_of_a_release_without_counts_is_parsed(tmp_path: Path) -> None:
    log = sample_log(tmp_path)
    bare = [record.line() for record in map(without_facts, log_records(log))]
    checksum_path(log).write_bytes(b"".join(bare))

    assert num_vouched(log) == 0
    assert count_part(CountTask(path=str(log))) == parsed(log)
    assert validate_log(log).num_blocks == 5


def log_records(log: Path) -> list[CommitRecord]:
    return read_records(checksum_path(log), log.stat().st_size)


def without_facts(record: CommitRecord) -> CommitRecord:
    return msgspec.structs.replace(record, facts=None)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.99])
def test_two_processes_count_what_one_does(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = sample_log(tmp_path)
    monkeypatch.setattr(counting, "_OWN_VERIFIED_SHARE", share)
    monkeypatch.setattr(counting, "PARALLEL_BYTES", 1)
    monkeypatch.setattr(counting.os, "cpu_count", lambda: 2)

    assert count_logs([log])[log] == parsed(log)


def test_part_begins_with_a_block_only_where_a_line_does(tmp_path: Path) -> None:
    log = sample_log(tmp_path)
    second = len(block(0, 3).data)
    assert checksummed_blocks.block_start_after(log, 1) == second
    assert num_vouched(log, second) == 12
    assert num_vouched(log, second + 1) == 9  # from the next block that begins behind it
    assert num_vouched(log, 0, second) == 3

    data = bytearray(log.read_bytes())
    data[second - 1] = ord(" ")
    log.write_bytes(data)

    assert checksummed_blocks.block_start_after(log, 1) is None


def test_checksums_vouch_only_for_the_log_beside_them(tmp_path: Path) -> None:
    log = sample_log(tmp_path)

    assert num_vouched(log.rename(tmp_path / "events.json")) == 0


def test_many_small_blocks_are_parsed_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = sample_log(tmp_path)
    monkeypatch.setattr(checksummed_blocks, "MIN_LOG_PER_CHECKSUM", 50)

    assert num_vouched(log) == 0
