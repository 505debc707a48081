"""Damaged lines never make a reader fail; they are counted, reported, and left out."""

from pathlib import Path
from random import Random

import pytest
from tests.nissa.fake_run import FakeRun, write_run

from esper.leyline.errors import UnreadableFileError
from esper.nissa.analysis.baseline_store import capture
from esper.nissa.analysis.counting import CountBy, CountTask, count_part
from esper.nissa.analysis.diff import diff_paths
from esper.nissa.analysis.validation import validate_run
from esper.nissa.reading.rendering import render_line

NUM_LINES = 10_000
TOKENS = [b"NaN", b"null", b"{", b"}", b"[", b'"', b"\\", b"\xff", b"\n", b"-1e999", b"\x00", b":"]


def mutated(line: bytes, random: Random) -> bytes:
    data = bytearray(line)
    for _ in range(random.randrange(1, 4)):
        place = random.randrange(len(data) + 1)
        match random.randrange(5):
            case 0:
                data[place:place] = random.choice(TOKENS)
            case 1:
                del data[place : place + random.randrange(1, 60)]
            case 2:
                data[place : place + 1] = bytes([random.randrange(256)])
            case 3:
                other = random.randrange(len(data) + 1)
                data[place:place] = data[other : other + 40]
            case 4:
                data[place:] = b""
    return bytes(data)


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    random = Random(11)
    whole = [line for line in FakeRun(num_steps=4).lines() if len(line) < 1500]
    return [mutated(random.choice(whole), random) for _ in range(NUM_LINES)]


@pytest.fixture(scope="module")
def run(lines: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "run"
    write_run(directory, lines)
    return directory


@pytest.mark.parametrize("by", [CountBy.TYPE, CountBy.KIND, CountBy.ENV])
def test_every_damaged_line_is_counted_as_good_bad_or_blank(by: CountBy, run: Path) -> None:
    log = run / "events.jsonl"

    tally = count_part(CountTask(path=str(log), by=by))

    num_blank = sum(not line.strip() for line in log.read_bytes().split(b"\n"))
    assert tally.num_events + tally.num_bad + num_blank - 1 == tally.num_lines
    assert tally.num_bad > NUM_LINES / 3


def test_validate_survives_damaged_lines(run: Path) -> None:
    assert validate_run(run).num_findings["schema"] > NUM_LINES / 3


def test_diff_survives_damaged_lines(run: Path, tmp_path: Path) -> None:
    assert not diff_paths(FakeRun().write(tmp_path), run).is_same
    assert diff_paths(run, run).is_same


def test_every_damaged_line_can_be_shown_on_one_line(lines: list[bytes]) -> None:
    assert all("\n" not in render_line(line) for line in lines[:2000] if b"\n" not in line)


def test_damaged_crc_files_and_manifests_are_reported(tmp_path: Path) -> None:
    random = Random(5)
    run = FakeRun(num_rounds=1, num_steps=2).write(tmp_path)
    crc, manifest = (run / name for name in ("events.crc", "run.json"))
    good_crc, good_manifest = crc.read_bytes(), manifest.read_bytes()
    messages = []
    for _ in range(100):
        crc.write_bytes(mutated(good_crc, random))
        validate_run(run)
        manifest.write_bytes(mutated(good_manifest, random))
        try:
            capture(run)
        except UnreadableFileError as error:
            messages.append(str(error))

    assert len(messages) > 50
    assert all("run.json: not the manifest of a run" in message for message in messages)
