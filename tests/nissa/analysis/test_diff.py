"""Planted differences are found and named; equal runs never differ."""

import json
from pathlib import Path

import msgspec
import pytest
from tests.nissa.analysis.test_normalizing import line_of
from tests.nissa.analysis.test_run_profile import index_of, swap
from tests.nissa.fake_run import FakeRun, write_run

from esper.leyline.errors import UnreadableFileError, UsageError
from esper.leyline.telemetry import EVENT_SPECS, CountClass, EventType
from esper.nissa.analysis import baseline_store, diff, run_profile
from esper.nissa.analysis.baseline_store import capture, read_baseline, write_baseline
from esper.nissa.analysis.diff import Difference, diff_paths

SHAPE = FakeRun(num_rounds=3, num_envs=3, num_steps=12, seed=3)


@pytest.fixture(autouse=True, params=[0, 1 << 20], ids=["digests", "early"])
def early_events(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare runs by their digests, and as runs that differ early."""
    monkeypatch.setattr(baseline_store, "EARLY_EVENTS", request.param)


def against(lines: list[bytes], tmp_path: Path, **changes: object) -> Difference:
    """Compare the usual run with these lines, recorded as another run of the same kind."""
    left = SHAPE.write(tmp_path / "left")
    manifest = msgspec.structs.replace(SHAPE.manifest(), **changes)
    write_run(tmp_path / "right", lines, manifest)
    return diff_paths(left, tmp_path / "right")


def edited(line: bytes, **data: object) -> bytes:
    event = json.loads(line)
    return msgspec.json.encode({**event, "data": {**event["data"], **data}})


@pytest.mark.parametrize(
    "other",
    [
        FakeRun(num_rounds=3, num_envs=3, num_steps=12, seed=3, run_id="ffffffff"),
        FakeRun(num_rounds=3, num_envs=3, num_steps=12, seed=3, run_id="1", started=1.9e9),
    ],
)
def test_identical_reruns_never_differ(other: FakeRun, tmp_path: Path) -> None:
    found = diff_paths(SHAPE.write(tmp_path), other.write(tmp_path))

    assert found.is_same
    assert found.is_stream_equal
    assert (found.provenance, found.keys, found.orders, found.checks) == ([], [], [], [])


def test_unfinished_run_equals_itself(tmp_path: Path) -> None:
    lines = list(SHAPE.lines())[:200]
    write_run(tmp_path / "a", lines)
    write_run(tmp_path / "b", lines)

    assert diff_paths(tmp_path / "a", tmp_path / "b").is_same


def test_missing_event_is_found(tmp_path: Path) -> None:
    lines = list(SHAPE.lines())
    missing = index_of(lines, "EPOCH_COMPLETED", 7)
    del lines[missing]

    found = against(lines, tmp_path)

    assert not found.is_same
    [change] = [change for change in found.counts if change.delta]
    assert (change.event_type, change.delta) == ("EPOCH_COMPLETED", -1)
    assert change.count_class is CountClass.STRUCTURAL
    assert found.divergence is not None
    assert (found.divergence.left_line, found.divergence.right_line) == (missing + 1, missing + 1)
    assert any(check.name.startswith("EPOCH_COMPLETED") for check in found.checks)


def test_extra_event_is_found(tmp_path: Path) -> None:
    lines = list(SHAPE.lines())
    extra = index_of(lines, "SEED_GERMINATED", 2)
    lines.insert(extra, lines[extra])

    found = against(lines, tmp_path)

    assert not found.is_same
    assert [(item.event_type, item.delta) for item in found.counts if item.delta] == [
        ("SEED_GERMINATED", 1)
    ]
    assert found.divergence is not None
    assert found.divergence.right_line == extra + 2


def test_reordered_events_are_found(tmp_path: Path) -> None:
    lines = list(SHAPE.lines())
    stats, barrier = index_of(lines, "BATCH_STATS"), index_of(lines, "BATCH_EPOCH_COMPLETED")

    found = against(swap(lines, stats, barrier), tmp_path)

    assert not found.is_same
    assert not any(change.delta for change in found.counts)
    assert [(item.left_line, item.right_line) for item in found.orders] == [(None, barrier + 1)]
    assert found.divergence is not None
    assert found.divergence.left_line == stats + 1


def test_renamed_key_is_found(tmp_path: Path) -> None:
    lines = [line.replace(b'"val_loss"', b'"validation_loss"') for line in SHAPE.lines()]

    found = against(lines, tmp_path)

    assert not found.is_same
    [change] = [item for item in found.keys if item.event_type == "EPOCH_COMPLETED"]
    assert (change.missing, change.added) == (["val_loss"], ["validation_loss"])


def test_changed_value_is_found_where_it_is(tmp_path: Path) -> None:
    lines = list(SHAPE.lines())
    place = index_of(lines, "EPOCH_COMPLETED", 20)
    lines[place] = edited(lines[place], val_loss=1234.5)

    found = against(lines, tmp_path)

    assert not found.is_same
    assert not any(change.delta for change in found.counts)
    assert found.divergence is not None
    assert found.divergence.paths == ["data.val_loss"]
    assert found.divergence.left_line == found.divergence.right_line == place + 1


def test_difference_behind_the_first_blocks_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_profile, "BLOCK_LINES", 16)
    monkeypatch.setattr(diff, "BLOCK_LINES", 16)
    lines = list(SHAPE.lines())
    lines[-1] = edited(lines[-1], status="interrupted")

    found = against(lines, tmp_path)

    assert found.divergence is not None
    assert found.divergence.right_line == len(lines)
    assert found.divergence.paths == ["data.status"]


def test_log_that_ends_early_diverges_at_its_end(tmp_path: Path) -> None:
    lines = list(SHAPE.lines())

    found = against(lines[:-1], tmp_path)

    assert found.divergence is not None
    assert (found.divergence.left_line, found.divergence.right_line) == (len(lines), None)


def test_seeded_differences_are_only_listed_when_machine_kinds_differ(tmp_path: Path) -> None:
    lines = list(SHAPE.lines())
    place = index_of(lines, "EPOCH_COMPLETED", 20)
    lines[place] = edited(lines[place], val_loss=1234.5)

    found = against(lines, tmp_path, machine_kind="another")

    assert found.is_same
    assert not found.is_stream_equal
    assert found.divergence is not None
    assert any("machine kind" in text for text in found.provenance)


def test_structural_difference_counts_on_any_machine(tmp_path: Path) -> None:
    lines = list(SHAPE.lines())
    del lines[index_of(lines, "THROUGHPUT")]

    assert not against(lines, tmp_path, machine_kind="another").is_same


def test_action_that_another_machine_rolls_back_is_no_structural_difference(
    tmp_path: Path,
) -> None:
    lines = list(SHAPE.lines())
    place = index_of(lines, "LAST_ACTION", 20)
    rollback = json.loads(line_of(EVENT_SPECS[EventType.GOVERNOR_ROLLBACK]))
    acted = json.loads(lines[place])
    lines[place] = msgspec.json.encode(
        {**acted, "event_type": "GOVERNOR_ROLLBACK", "data": rollback["data"]}
    )

    elsewhere = against(lines, tmp_path, machine_kind="another")

    assert elsewhere.is_same
    assert {item.event_type: item.delta for item in elsewhere.counts if item.delta} == {
        "GOVERNOR_ROLLBACK": 1,
        "LAST_ACTION": -1,
    }


def test_events_of_the_environment_change_nothing(tmp_path: Path) -> None:
    lines = list(SHAPE.lines())
    lines.insert(50, line_of(EVENT_SPECS[EventType.MEMORY_WARNING]))

    found = against(lines, tmp_path)

    assert found.is_same
    assert [(item.event_type, item.delta) for item in found.counts if item.delta] == [
        ("MEMORY_WARNING", 1)
    ]


def test_baseline_stands_for_the_run_it_was_captured_from(tmp_path: Path) -> None:
    run = SHAPE.write(tmp_path)
    path = tmp_path / "kept" / "baseline.json"
    write_baseline(capture(run), path)

    rerun = FakeRun(num_rounds=3, num_envs=3, num_steps=12, seed=3, run_id="2").write(tmp_path)
    other = FakeRun(num_rounds=3, num_envs=3, num_steps=13, seed=3, run_id="3").write(tmp_path)

    assert read_baseline(path) == capture(run)
    assert read_baseline(path).provenance.commit == "0123abc"
    assert diff_paths(path, rerun).is_same
    assert diff_paths(rerun, path).is_same
    found = diff_paths(path, other)
    assert not found.is_same
    assert found.divergence is None


def test_baseline_finds_a_changed_value_by_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(capture(SHAPE.write(tmp_path)), path)
    lines = list(SHAPE.lines())
    lines[60] = lines[60].replace(b'"group":"default"', b'"group":"other"')
    write_run(tmp_path / "right", lines, SHAPE.manifest())

    assert not diff_paths(path, tmp_path / "right").is_same


def test_foreign_logs_are_compared_too(tmp_path: Path) -> None:
    rows = [{"event_id": str(i), "event_type": "X", "data": {"v": i % 3}} for i in range(30)]
    left, right = tmp_path / "left.jsonl", tmp_path / "right.jsonl"
    left.write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = [{**row, "event_id": "other"} for row in rows]
    right.write_text("".join(json.dumps(row) + "\n" for row in again))
    assert diff_paths(left, right).is_same

    again[7]["data"] = {"v": 1, "w": 2}
    right.write_text("".join(json.dumps(row) + "\n" for row in again))
    found = diff_paths(left, right)

    assert not found.is_same
    assert found.divergence is not None
    assert found.divergence.left_line == 8
    assert found.keys[0].added == ["w"]


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    SHAPE.write(tmp_path / "runs")
    FakeRun(run_id="4").write(tmp_path / "runs")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"format":"other"}')

    with pytest.raises(UsageError, match="contains 2 runs"):
        diff_paths(tmp_path / "runs", empty)
    with pytest.raises(UnreadableFileError, match="no events"):
        diff_paths(empty, empty)
    with pytest.raises(UnreadableFileError, match="not a baseline"):
        diff_paths(wrong, empty)
