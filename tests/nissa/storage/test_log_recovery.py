"""Recovery after a crash: which part of a log is covered, whole, or torn."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nissa.making import line

from esper.leyline.errors import UnreadableFileError
from esper.nissa.storage.blocks import Block, CommitRecord
from esper.nissa.storage.log_recovery import LogRecovery, recover_log, verify_records

LINES = [line(seq) for seq in range(6)]
DATA = b"".join(LINES)


def write(directory: Path, data: bytes, *block_sizes: int) -> Path:
    """Write a log and the records of blocks of these numbers of events."""
    path, records, seq = directory / "events.jsonl", list[bytes](), 0
    for size in block_sizes:
        block = Block(seq, size, b"".join(LINES[seq : seq + size]))
        records.append(CommitRecord.of(block, sum(map(len, LINES[:seq]))).line())
        seq += size
    path.write_bytes(data)
    (directory / "events.crc").write_bytes(b"".join(records))
    return path


def recovered(path: Path) -> LogRecovery:
    return recover_log(path, has_checksums=True)


def test_events_after_the_last_record_are_the_tail(tmp_path: Path) -> None:
    found = recovered(write(tmp_path, DATA, 2, 1))

    assert [record.num_events for record in found.records] == [2, 1]
    assert found.covered_end == sum(map(len, LINES[:3]))
    assert found.tail.lines() == [text[:-1] for text in LINES[3:]]
    assert (found.next_seq, found.whole_end, found.num_bytes) == (6, len(DATA), len(DATA))


@settings(max_examples=60, deadline=None)
@given(num_bytes=st.integers(0, len(DATA)), num_covered=st.integers(0, 6))
def test_log_cut_at_any_byte_ends_with_its_last_whole_event(
    tmp_path_factory: pytest.TempPathFactory, num_bytes: int, num_covered: int
) -> None:
    path = write(tmp_path_factory.mktemp("log"), DATA[:num_bytes], *[1] * num_covered)
    num_whole = DATA[:num_bytes].count(b"\n")

    found = recovered(path)

    assert found.next_seq == num_whole
    assert found.whole_end == sum(map(len, LINES[:num_whole]))
    assert found.num_bytes == num_bytes
    assert len(found.records) == min(num_covered, num_whole)


@pytest.mark.parametrize("bad", [b"{}\n", b"garbage\n", LINES[5], LINES[1]])
def test_tail_ends_before_a_line_that_does_not_continue_the_sequence(
    tmp_path: Path, bad: bytes
) -> None:
    found = recovered(write(tmp_path, b"".join([*LINES[:3], bad, *LINES[3:]]), 2))
    assert found.next_seq == 3
    assert found.whole_end == sum(map(len, LINES[:3]))


def test_log_without_checksums_is_tail_from_its_first_byte(tmp_path: Path) -> None:
    found = recover_log(write(tmp_path, DATA, 2), has_checksums=False)
    assert (found.records, found.covered_end, found.next_seq) == ([], 0, 6)


def test_damage_in_a_covered_block_is_named_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, DATA, 2, 2)
    records = recovered(path).records
    verify_records(path, records)

    start = sum(map(len, LINES[:2]))
    damaged = bytearray(DATA)
    damaged[start + 5] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(UnreadableFileError, match=f"events 2 to 3 at byte {start} is damaged"):
        verify_records(path, records)
