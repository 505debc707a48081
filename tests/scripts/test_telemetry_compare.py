"""`esper-telemetry baseline` and `validate` from the command line."""

import json
from pathlib import Path

import pytest
from tests.nissa.fake_run import FakeRun, write_run

from esper.scripts.telemetry import main

NUM_EVENTS = len(list(FakeRun().lines()))


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
