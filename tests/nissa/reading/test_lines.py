"""Logs are found and read whatever they are wrapped in."""

import gzip
import io
import sys
import tracemalloc
from pathlib import Path

import pytest
from backports import zstd

from esper.leyline.errors import UnreadableFileError
from esper.nissa.reading import lines
from esper.nissa.reading.lines import STDIN, read_chunks, read_lines, split_lines

TEXT = b'{"event_type":"A"}\n\n{"event_type":"B"}\nrest'
LINES = [b'{"event_type":"A"}', b"", b'{"event_type":"B"}', b"rest"]


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, zstd.compress], ids=["plain", "gzip", "zstd"]
)
def test_lines_are_the_same_whatever_they_are_wrapped_in(pack: object, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(pack(TEXT))  # type: ignore[operator]

    assert list(read_lines(path)) == LINES


def test_standard_input_may_be_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(gzip.compress(TEXT))))
    monkeypatch.setattr(sys, "stdin", stdin)

    assert list(read_lines(STDIN)) == LINES


def test_chunks_hold_whole_lines_however_small_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 5)
    path = tmp_path / "log"
    path.write_bytes(TEXT)

    chunks = list(read_chunks(path))

    assert b"".join(chunks) == TEXT
    assert all(chunk.endswith(b"\n") for chunk in chunks[:-1])
    assert len(chunks) > 2


def test_range_of_a_file_is_read_from_start_to_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"aa\nbb\ncc\n")

    assert b"".join(read_chunks(path, 3, 6)) == b"bb\n"


def test_endless_line_is_cut_instead_of_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 10)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 20)
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1000 + b"\nshort\n")

    first, second = read_lines(path)

    assert len(first) < 60
    assert second == b"short"


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
def test_damaged_compression_is_reported_in_one_sentence(pack: object, tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = bytearray(pack(TEXT * 50))  # type: ignore[operator]
    path.write_bytes(data[: len(data) // 2])

    with pytest.raises(UnreadableFileError, match="damaged"):
        list(read_lines(path))


@pytest.mark.parametrize("end", [b"\n", b""])
def test_long_line_is_copied_once(end: bytes) -> None:
    chunk = b"x" * (8 << 20) + end
    tracemalloc.start()
    try:
        split = split_lines(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(line) for line in split] == [8 << 20]
    assert peak < 1.5 * len(chunk)
