"""The content of a log: equal exactly for equal runs, known only where all bytes are verified."""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest
from tests.nissa.analysis.test_normalizing import line_of
from tests.nissa.fake_run import FakeRun, write_log

from esper.leyline.telemetry import EVENT_SPECS
from esper.nissa.analysis import baseline_store
from esper.nissa.analysis.content import Content, ContentTask, read_content
from esper.nissa.analysis.diff import Difference, diff_paths
from esper.nissa.analysis.normalizing import normal_form
from esper.nissa.reading import checksummed_blocks

SHAPE = FakeRun(num_rounds=2, num_envs=2, num_steps=6)
RERUN = dataclasses.replace(SHAPE, run_id="ffffffff", started=1.9e9)
LINES = list(SHAPE.lines())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks vouch that are small enough for a test."""
    monkeypatch.setattr(checksummed_blocks, "MIN_LOG_PER_CHECKSUM", 0)


def content_of(folder: Path, lines: list[bytes], block_lines: int = 256) -> Content:
    folder.mkdir()
    write_log(folder / "events.jsonl", lines, block_lines=block_lines)
    return read_content(ContentTask(path=str(folder / "events.jsonl")))


def test_content_does_not_depend_on_id_clock_and_blocks(tmp_path: Path) -> None:
    first = content_of(tmp_path / "first", LINES)

    assert first.is_known
    assert first.counts == Counter(json.loads(line)["event_type"] for line in LINES)
    assert content_of(tmp_path / "second", list(RERUN.lines()), block_lines=10) == first


def test_contents_are_equal_where_normal_forms_are(tmp_path: Path) -> None:
    for spec in EVENT_SPECS.values():
        first, second = line_of(spec), line_of(spec, 2)
        twin = first.replace(b'"ts":1.5,', b'"ts":2.75,').replace(b'"run_id":"r"', b'"run_id":"s"')
        digests = [
            content_of(tmp_path / f"{spec.event_type} {number}", [line]).digest
            for number, line in enumerate((first, second, twin))
        ]

        assert "" not in digests, spec
        is_equal = normal_form(first) == normal_form(second)
        assert (digests[0] == digests[1]) == is_equal, spec
        assert digests[0] == digests[2], spec


@pytest.mark.parametrize("place", [0, 5, -1])
def test_changed_line_changes_the_content(place: int, tmp_path: Path) -> None:
    changed = list(LINES)
    changed[place] = changed[place].replace(b'"group":"default"', b'"group":"other"')

    assert content_of(tmp_path / "a", changed) != content_of(tmp_path / "b", LINES)
    assert content_of(tmp_path / "c", LINES[:-1]) != content_of(tmp_path / "d", LINES)


def test_content_of_a_log_that_is_damaged_or_goes_on_is_not_known(tmp_path: Path) -> None:
    log = tmp_path / "log" / "events.jsonl"
    content_of(log.parent, LINES, block_lines=10)
    whole = log.read_bytes()
    task = ContentTask(path=str(log))

    for data in (whole[:-1], whole + b"{", whole + LINES[0] + b"\n", b"x" + whole[1:]):
        log.write_bytes(data)
        assert not read_content(task).is_known
    log.write_bytes(whole)
    assert read_content(task).is_known
    log.with_suffix(".crc").unlink()
    assert not read_content(task).is_known


@pytest.mark.parametrize("line", [b'{"event_type":"A"}', b'{"seq":1,"event_type":"A"}', b"[]"])
def test_content_of_foreign_lines_is_not_known(line: bytes, tmp_path: Path) -> None:
    assert not content_of(tmp_path / "log", [line]).is_known


def parsed(left: Path, right: Path, monkeypatch: pytest.MonkeyPatch) -> Difference:
    """Compare two runs as if nothing vouched for their logs."""
    with monkeypatch.context() as patched:
        unknown = Content(digest="", counts={})
        patched.setattr(baseline_store, "read_content", lambda task: unknown)
        return diff_paths(left, right)


def test_equal_runs_are_compared_without_parsing_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = SHAPE.write(tmp_path), RERUN.write(tmp_path)
    expected = parsed(*runs, monkeypatch)
    monkeypatch.setattr(baseline_store, "scan_log", None)

    assert diff_paths(*runs) == expected
    assert expected.is_same


@pytest.mark.parametrize("early_events", [0, 1_024])
def test_runs_that_differ_are_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early_events: int
) -> None:
    monkeypatch.setattr(baseline_store, "EARLY_EVENTS", early_events)
    other = dataclasses.replace(SHAPE, run_id="ffffffff", seed=8)
    runs = SHAPE.write(tmp_path), other.write(tmp_path)
    expected = parsed(*runs, monkeypatch)
    scan_logs, calls = baseline_store.scan_logs, list[bool]()

    def noted(logs: list[Path], *, with_keys: bool, **others: bool) -> list[baseline_store.Scan]:
        calls.append(with_keys)
        return scan_logs(logs, with_keys=with_keys, **others)

    monkeypatch.setattr(baseline_store, "scan_logs", noted)

    assert diff_paths(*runs) == expected
    assert not expected.is_stream_equal
    assert calls == [True]
