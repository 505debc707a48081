"""`esper-telemetry diff` from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.nissa.analysis.test_run_profile import index_of
from tests.nissa.fake_run import FakeRun, write_run

from esper.leyline.config import Job, TrainingConfig
from esper.leyline.rewards import RewardConfig
from esper.scripts.telemetry import main


def test_diff_of_equal_runs_says_so_first(tmp_path: Path) -> None:
    left, right = FakeRun().write(tmp_path), FakeRun(run_id="2").write(tmp_path)
    command = [sys.executable, "-m", "esper.scripts.telemetry", "diff", str(left), str(right)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    lines = done.stdout.splitlines()
    assert lines[0] == "same: every event that is compared is equal"
    assert any(line.startswith("0 of ") and "differ in number" in line for line in lines)


def test_diff_shows_what_differs_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = FakeRun().write(tmp_path)
    lines = [line.replace(b'"val_loss"', b'"loss"') for line in FakeRun().lines()]
    del lines[index_of(lines, "PHASE_PROFILE_COMPLETED")]
    write_run(tmp_path / "right", lines, FakeRun().manifest())

    assert main(["diff", str(left), str(tmp_path / "right")]) == 1

    out = capsys.readouterr().out
    assert out.startswith("differs: counts of 1 event types, fields of 1 event types, equations")
    assert "PHASE_PROFILE_COMPLETED  structural    18     17     -1" in out
    assert "BATCH_STATS" not in out
    assert "fields of EPOCH_COMPLETED: -val_loss +loss" in out
    assert (
        "equation: PHASE_PROFILE_COMPLETED = rounds x (steps + 1): left 18 / 18, right 17 / 18"
        in out
    )
    assert "first difference: round 1, step 1, env 0 (left line 3, right line 3)" in out
    assert '{"event_type"' not in out
    assert main(["diff", "--all", "--raw", str(left), str(tmp_path / "right")]) == 1
    out = capsys.readouterr().out
    assert "BATCH_STATS" in out
    assert '  - {"event_type":"EPOCH_COMPLETED"' in out


def test_runs_of_two_configurations_are_compared_key_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    FakeRun(run_id="aa11").write(Path("runs"))
    other = FakeRun(run_id="bb22", seed=8)
    training = TrainingConfig(
        **{
            **msgspec.structs.asdict(other.manifest().job.training),
            "lr": 0.5,
            "reward": RewardConfig(rent_weight=0.75),
        }
    )
    manifest = msgspec.structs.replace(other.manifest(), job=Job(training=training))
    write_run(Path("runs/20260102T000000Z_bb22"), other.lines(), manifest)

    main(["diff", "aa", "latest"])

    out = capsys.readouterr().out
    verdict, left, right, _, head, *rows = out.splitlines()
    assert verdict.startswith("same structure: the configurations differ, so seeded counts")
    assert (left.split()[1], right.split()[1]) == (
        "runs/20260101T000000Z_aa11",
        "runs/20260102T000000Z_bb22",
    )
    assert head.split() == ["configuration", "left", "right"]
    assert [row.split() for row in rows[:3]] == [
        ["seed", "7", "8"],
        ["lr", "0.0003", "0.5"],
        ["reward.rent_weight", "0.5", "0.75"],
    ]
    assert "TRAINING_STARTED: seed" not in out
    assert ["best", "accuracy,", "%", "91.50", "91.50", "+0.00"] in map(str.split, out.splitlines())


def test_changed_value_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = FakeRun().write(tmp_path)
    lines = list(FakeRun().lines())
    event = json.loads(lines[-1])
    lines[-1] = msgspec.json.encode({**event, "data": {**event["data"], "status": "failed"}})
    write_run(tmp_path / "right", lines, FakeRun().manifest())

    assert main(["diff", str(left), str(tmp_path / "right")]) == 1

    out = capsys.readouterr().out
    assert out.startswith("differs: events from the run as a whole on")
    assert "  status: completed -> failed" in out
    assert "state                    completed  failed" in out


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
