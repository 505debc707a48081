"""Blocks of whole lines and the records that cover them."""

import io
import zlib
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.nissa.storage.blocks import (
    Block,
    BlockFacts,
    CommitRecord,
    checksum_path,
    iterate_records,
    parse_commit_record,
    read_records,
)

texts = st.binary(max_size=8).map(lambda data: data.replace(b"\n", b"."))
blocks = st.builds(
    lambda first, lines: Block(first, len(lines), b"".join(line + b"\n" for line in lines)),
    st.integers(0, 1000),
    st.lists(texts, min_size=1, max_size=6),
)


def records_of(*datas: bytes) -> list[CommitRecord]:
    records, start, seq = [], 0, 0
    for data in datas:
        block = Block(seq, data.count(b"\n"), data)
        records.append(CommitRecord.of(block, start))
        start, seq = start + len(data), block.next_seq
    return records


@given(blocks, st.integers(-3, 10))
def test_block_cut_at_a_seq_has_the_lines_from_there_on(block: Block, offset: int) -> None:
    seq = min(block.first_seq + offset, block.next_seq)
    cut = block.from_seq(seq)

    assert cut.lines() == block.lines()[max(offset, 0) :]
    assert cut.next_seq == block.next_seq
    assert cut.num_events == len(cut.lines())


def test_block_of_which_nothing_is_cut_is_not_copied() -> None:
    block = Block(4, 1, b"a\n")
    assert block.from_seq(4) is block


def test_empty_block_has_no_lines() -> None:
    assert Block(4, 0, b"").lines() == []


@given(blocks, st.integers(0, 1 << 40), st.binary(max_size=8))
def test_record_survives_its_line_and_covers_its_block(
    block: Block, start: int, rest: bytes
) -> None:
    record = CommitRecord.of(block, start)

    assert parse_commit_record(record.line()) == record
    assert record.num_events == block.num_events
    assert record.end - record.start == len(block.data)
    assert record.crc == zlib.crc32(block.data)
    log = io.BytesIO(block.data + rest)
    assert record.matches(log)
    assert log.read() == rest  # the next record's block begins here


@given(blocks, st.data())
def test_any_flipped_bit_is_noticed(block: Block, data: st.DataObject) -> None:
    record = CommitRecord.of(block, 0)
    position = data.draw(st.integers(0, 8 * len(block.data) - 1))
    damaged = bytearray(block.data)
    damaged[position // 8] ^= 1 << (position % 8)
    assert not record.matches(io.BytesIO(damaged))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"0 5 0 0\n",
        b"0 5 0 0 zzzzzzzz\n",
        b"0 5 0 x 00000000\n",
        b"00 5 0 0 00000000\n",
        b"+0 5 0 0 00000000\n",
        b"0 5 0 0 ABCDEF00\n",
        b"0 5 0 0 0\n",
        b"0 5  0 0 00000000\n",
        "0 5 0 \u0660 00000000\n".encode(),
        b"0 5 0 0 00000000X\n",
    ],
)
def test_other_spellings_are_no_records(line: bytes) -> None:
    assert parse_commit_record(line) is None


def test_record_follows_only_the_one_that_ends_where_it_begins() -> None:
    records = records_of(b"a\n", b"b\nc\n", b"d\n")
    assert records[0].follows(None)
    assert all(later.follows(earlier) for earlier, later in pairwise(records))
    assert not records[2].follows(records[0])
    assert not records[1].follows(None)
    for last_seq in (-1, 0):
        empty = CommitRecord(start=0, end=0, first_seq=0, last_seq=last_seq, crc=0)
        assert not empty.follows(None)


def test_records_are_read_up_to_the_first_that_does_not_fit(tmp_path: Path) -> None:
    records = records_of(b"a\n", b"b\nc\n", b"d\n")
    lines = [record.line() for record in records]
    path = tmp_path / "events.crc"

    assert read_records(path, 100) == []
    path.write_bytes(b"".join(lines))
    assert read_records(path, 8) == records
    assert read_records(path, 7) == records[:2]
    path.write_bytes(b"".join(lines)[:-1])
    assert read_records(path, 8) == records[:2]
    path.write_bytes(lines[0] + lines[2])
    assert read_records(path, 8) == records[:1]


@pytest.mark.parametrize("start", range(12))
def test_records_of_the_later_part_are_those_that_begin_in_it(tmp_path: Path, start: int) -> None:
    path = tmp_path / "events.crc"
    records = records_of(b"a\n", b"b\nc\n", b"d\n", b"ef\n")
    path.write_bytes(b"".join(record.line() for record in records))

    found = list(iterate_records(path, 11, start))

    assert found == [record for record in records if record.start >= start]


def test_chain_of_the_later_part_ends_at_the_first_record_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "events.crc"
    first, second, third, fourth = records_of(b"a\n", b"b\n", b"c\n", b"d\n")
    path.write_bytes(b"".join(record.line() for record in (first, second, fourth, third)))
    assert list(iterate_records(path, 8, 1)) == [second]

    path.write_bytes(first.line() + b"damaged\n" + third.line())
    assert list(iterate_records(path, 8, 3)) == []


def test_record_of_no_bytes_begins_no_chain(tmp_path: Path) -> None:
    path = tmp_path / "events.crc"
    (record,) = records_of(b"abc\n")
    path.write_bytes(msgspec.structs.replace(record, start=4, end=2).line())
    assert list(iterate_records(path, 8, 1)) == []


def record_of_type(name: str) -> CommitRecord:
    facts = BlockFacts(types=f"{name}:1", envs="-:1", severities="info:1")
    return CommitRecord.of(Block(0, 1, b"a\n"), 0, facts)


@pytest.mark.parametrize(("num_bytes", "is_read"), [(65_536, True), (65_537, False)])
def test_line_that_no_block_can_have_is_not_read_to_its_end(
    tmp_path: Path, num_bytes: int, is_read: bool
) -> None:
    path = tmp_path / "events.crc"
    record = record_of_type("A" * (num_bytes - len(record_of_type("").line())))
    path.write_bytes(record.line())
    assert path.stat().st_size == num_bytes
    assert read_records(path, 2) == [record] * is_read


def test_checksum_file_lies_beside_its_log() -> None:
    assert checksum_path(Path("run/events.jsonl")) == Path("run/events.crc")
