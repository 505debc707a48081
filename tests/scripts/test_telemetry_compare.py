"""`esper-telemetry baseline`, `diff` and `validate` from the command line."""

import json
from pathlib import Path

import pytest
from tests.nissa.analysis.test_run_profile import index_of
from tests.nissa.fake_run import FakeRun, write_run

from esper.scripts.telemetry import main

NUM_EVENTS = len(list(FakeRun().lines()))


def test_diff_of_equal_runs_says_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left, right = FakeRun().write(tmp_path), FakeRun(run_id="2").write(tmp_path)

    assert main(["diff", str(left), str(right)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "same"


def test_diff_shows_what_differs_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = FakeRun().write(tmp_path)
    lines = [line.replace(b'"val_loss"', b'"loss"') for line in FakeRun().lines()]
    del lines[index_of(lines, "PHASE_PROFILE_COMPLETED")]
    write_run(tmp_path / "right", lines, FakeRun().manifest())

    assert main(["diff", str(left), str(tmp_path / "right")]) == 1

    out = capsys.readouterr().out
    assert "PHASE_PROFILE_COMPLETED     structural    18     17     -1" in out
    assert "keys of EPOCH_COMPLETED: -val_loss +loss" in out
    assert (
        "equation: PHASE_PROFILE_COMPLETED = rounds x (steps + 1): left 18 / 18, right 17 / 18"
        in out
    )
    assert "first difference: left line 3, right line 3" in out
    assert out.splitlines()[-1] == "differs"


def test_diff_as_json_carries_the_same_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = FakeRun().write(tmp_path), FakeRun(num_steps=9, run_id="2").write(tmp_path)

    assert main(["diff", "--json", str(left), str(right)]) == 1

    found = json.loads(capsys.readouterr().out)
    assert found["is_same"] is False
    assert found["divergence"]["paths"] == ["data.num_steps"]


def test_diff_of_nothing_is_unusable(tmp_path: Path) -> None:
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 2


def test_captured_baselines_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FakeRun().write(tmp_path)
    kept = tmp_path / "kept"
    assert main(["baseline", "capture", str(run), "-o", str(kept / "small.json")]) == 0
    assert f"{NUM_EVENTS} events of " in capsys.readouterr().out

    assert main(["baseline", "list", str(kept)]) == 0

    assert f"small.json     {NUM_EVENTS}  completed  0123abc" in capsys.readouterr().out
    assert main(["diff", str(kept / "small.json"), str(run)]) == 0


def test_capture_reports_broken_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(FakeRun().lines())
    write_run(tmp_path / "run", [lines[1], lines[0], *lines[2:]])

    assert main(["baseline", "capture", str(tmp_path / "run"), "-o", str(tmp_path / "b.json")]) == 0
    assert "TRAINING_STARTED is the first event" in capsys.readouterr().out


def test_validate_says_valid_or_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun().write(tmp_path)
    assert main(["validate", str(run)]) == 0
    assert f"valid: {NUM_EVENTS} events, 1 CRC blocks match" in capsys.readouterr().out
    (run / "events.crc").unlink()

    assert main(["validate", str(run)]) == 1
    assert "events.crc: crc: is missing" in capsys.readouterr().out
    assert main(["validate", "--json", str(run)]) == 1
    assert json.loads(capsys.readouterr().out)["num_findings"] == {"crc": 1}
    assert main(["validate", str(tmp_path / "nothing")]) == 2
