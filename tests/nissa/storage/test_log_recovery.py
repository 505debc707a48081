"""Recovery after a crash: which part of a log is covered, whole, or torn."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.nissa import making
from tests.nissa.making import line

from esper.leyline.errors import UnreadableFileError
from esper.nissa.storage import log_recovery
from esper.nissa.storage.blocks import Block, CommitRecord
from esper.nissa.storage.log_recovery import recover_log, recover_plain_log, verify_records

LINES = [line(seq) for seq in range(6)]
DATA = b"".join(LINES)


def write(directory: Path, data: bytes, *block_sizes: int) -> Path:
    """Write a log and the records of blocks of these numbers of events."""
    path = directory / "events.jsonl"
    path.write_bytes(data)
    lines = [record.line() for record in records_of(*block_sizes)]
    (directory / "events.crc").write_bytes(b"".join(lines))
    return path


def records_of(*block_sizes: int) -> list[CommitRecord]:
    return list(making.records_of(blocks_of(*block_sizes)))


def blocks_of(*sizes: int) -> Iterator[Block]:
    first_seq = 0
    for size in sizes:
        yield Block(first_seq, size, b"".join(LINES[first_seq : first_seq + size]))
        first_seq += size


@pytest.mark.parametrize(
    ("covered_bytes", "sizes"),
    [
        (1, [1, 1, 1]),
        (len(LINES[3]) + 1, [2, 1]),
        (len(LINES[3]) + len(LINES[4]), [2, 1]),
        (1 << 16, [3]),
    ],
)
def test_events_after_the_last_record_are_uncovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, covered_bytes: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(log_recovery, "COVERED_BYTES", covered_bytes)
    found = recover_log(write(tmp_path, DATA, 2, 1))

    assert found.records == records_of(2, 1)
    assert found.uncovered == records_of(2, 1, *sizes)[2:]
    assert (found.next_seq, found.whole_end, found.num_bytes) == (6, len(DATA), len(DATA))


def test_uncovered_events_get_a_checksum_for_every_64_kib(tmp_path: Path) -> None:
    lines = [line(seq) for seq in range(400)]
    found = recover_log(write(tmp_path, b"".join(lines)))

    sizes = [record.end - record.start for record in found.uncovered]
    assert len(sizes) > 1
    assert all(65_536 <= size < 65_536 + max(map(len, lines)) for size in sizes[:-1])
    assert found.next_seq == 400


@settings(max_examples=60, deadline=None)
@given(num_bytes=st.integers(0, len(DATA)), num_covered=st.integers(0, 6))
@example(num_bytes=len(DATA) - 1, num_covered=2)  # only the last newline is missing
def test_log_cut_at_any_byte_ends_with_its_last_whole_event(
    tmp_path_factory: pytest.TempPathFactory, num_bytes: int, num_covered: int
) -> None:
    path = write(tmp_path_factory.mktemp("log"), DATA[:num_bytes], *[1] * num_covered)
    num_whole = DATA[:num_bytes].count(b"\n")

    found = recover_log(path)

    assert found.next_seq == num_whole
    assert found.whole_end == sum(map(len, LINES[:num_whole]))
    assert found.num_bytes == num_bytes
    assert len(found.records) == min(num_covered, num_whole)
    records = [*found.records, *found.uncovered]
    assert sum(record.num_events for record in records) == num_whole
    assert all(later.follows(earlier) for earlier, later in pairwise([None, *records]) if later)
    verify_records(path, records)


@pytest.mark.parametrize("bad", [b"{}\n", b"garbage\n", LINES[5], LINES[1]])
def test_tail_ends_before_a_line_that_does_not_continue_the_sequence(
    tmp_path: Path, bad: bytes
) -> None:
    found = recover_log(write(tmp_path, b"".join([*LINES[:3], bad, *LINES[3:]]), 2))
    assert found.next_seq == 3
    assert found.whole_end == sum(map(len, LINES[:3]))


@pytest.mark.parametrize("bad", [b"garbage\n", b"{}\n"])
@pytest.mark.parametrize("place", [0, 3, 4])
@pytest.mark.parametrize("torn", [b"", b"{", LINES[5][:-1]])
def test_log_without_checksums_keeps_every_whole_line_whatever_its_records_say(
    tmp_path: Path, bad: bytes, place: int, torn: bytes
) -> None:
    whole = b"".join([*LINES[:place], bad, *LINES[place + 1 : 5]])
    found = recover_plain_log(write(tmp_path, whole + torn, 2))
    assert (found.records, found.uncovered, found.next_seq) == ([], [], 5)
    assert (found.whole_end, found.num_bytes) == (len(whole), len(whole + torn))


def test_line_that_is_read_in_pieces_is_kept_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_recovery, "MAX_LINE_BYTES", len(LINES[0]) // 3)
    found = recover_plain_log(write(tmp_path, DATA + b"torn"))
    assert (found.next_seq, found.whole_end) == (6, len(DATA))


def test_damage_in_a_covered_block_is_named_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, DATA, 2, 2)
    records = recover_log(path).records
    verify_records(path, records)

    start = sum(map(len, LINES[:2]))
    damaged = bytearray(DATA)
    damaged[start + 5] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(UnreadableFileError, match=f"events 2 to 3 at byte {start} is damaged"):
        verify_records(path, records)
