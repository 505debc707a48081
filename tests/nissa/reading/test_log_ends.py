"""The ends of a log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.karn.story import Story

from esper.leyline.errors import UnreadableFileError
from esper.nissa.reading import log_ends
from esper.nissa.reading.log_ends import read_ends

READ_AND_PRINT_GROWTH = """
import re, sys
from pathlib import Path
from esper.nissa.reading.log_ends import read_ends

def peak_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

read_ends(Path(sys.argv[1]), 2)
before = peak_kib()
read_ends(Path(sys.argv[2]), 2)
print(peak_kib() - before)
"""
LINES = list(Story(num_rounds=5, num_envs=2, num_steps=4).lines())


def is_of(line: bytes, event_type: str) -> bool:
    return line.startswith(b'{"event_type":"%s"' % event_type.encode())


def written(path: Path, lines: list[bytes], end: bytes = b"\n") -> Path:
    path.write_bytes(b"\n".join(lines) + end)
    return path


@pytest.mark.parametrize("piece_bytes", [64, 1000, log_ends.PIECE_BYTES])
@pytest.mark.parametrize("num_rounds", [1, 3, 9])
def test_ends_are_what_a_search_of_the_whole_log_finds(
    tmp_path: Path, num_rounds: int, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_ends, "FIRST_PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(log_ends, "PIECE_BYTES", piece_bytes)
    ends = [index for index, line in enumerate(LINES) if is_of(line, "BATCH_EPOCH_COMPLETED")]
    updates = [index for index, line in enumerate(LINES) if is_of(line, "PPO_UPDATE_COMPLETED")]
    recent = ends[-3] if num_rounds >= 3 else 0
    alarms = [
        index
        for index, line in enumerate(LINES)
        if index >= recent and (b'"severity":"warning"' in line or b'"severity":"error"' in line)
    ]
    expected = {0, len(LINES) - 1, updates[-1], *ends[-num_rounds:], *alarms}

    found = read_ends(written(tmp_path / "log", LINES), num_rounds)

    assert found == [LINES[index] for index in sorted(expected)]


def test_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    whole = read_ends(written(tmp_path / "whole", LINES[:-1]), 2)
    partial = written(tmp_path / "partial", LINES[:-1])
    partial.write_bytes(partial.read_bytes() + LINES[-1][:40])

    assert read_ends(partial, 2) == whole


def test_mark_inside_a_text_is_no_event(tmp_path: Path) -> None:
    fake = b'{"event_type":"X","text":"{\\"event_type\\":\\"BATCH_EPOCH_COMPLETED\\"}"}'
    raw = b'x {"event_type":"BATCH_EPOCH_COMPLETED"}'
    log = written(tmp_path / "log", [LINES[0], fake, raw, LINES[-1]])

    assert read_ends(log, 5) == [LINES[0], LINES[-1]]


@pytest.mark.parametrize("text", [b"", b"half a line"])
def test_log_without_a_line_has_no_ends(tmp_path: Path, text: bytes) -> None:
    log = tmp_path / "log"
    log.write_bytes(text)
    assert read_ends(log, 5) == []


def test_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="cannot be read: No such file"):
        read_ends(tmp_path / "log", 5)


def test_pipe_in_the_place_of_a_log_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(UnreadableFileError, match="not a regular file"):
        read_ends(tmp_path / "log", 5)


def test_log_that_is_cut_while_it_is_read_shows_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(tmp_path / "log", LINES)
    length = len(LINES[0]) + 1
    real, num_calls = os.pread, 0

    def cutting(descriptor: int, num_bytes: int, start: int) -> bytes:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            os.truncate(log, length)
        return real(descriptor, num_bytes, start)

    monkeypatch.setattr(os, "pread", cutting)
    assert read_ends(log, 5) == LINES[:1]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux reports peak memory")
def test_search_through_a_long_log_does_not_hold_it_in_memory(tmp_path: Path) -> None:
    short, long = (written(tmp_path / name, LINES[:1]) for name in ("short", "long"))
    with long.open("r+b") as file:
        file.seek(96 << 20)  # leaves a hole, in which there is no event
        file.write(b"\n" + LINES[-1] + b"\n")
    command = [sys.executable, "-c", READ_AND_PRINT_GROWTH, str(short), str(long)]

    grown_kib = int(subprocess.run(command, check=True, capture_output=True).stdout)

    assert grown_kib < 8 << 10
