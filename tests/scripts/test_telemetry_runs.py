"""`esper-telemetry runs` as its user calls it."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.nissa.fake_run import FakeRun, write_run

from esper.leyline.config import Job, RunOptions
from esper.scripts import telemetry_runs
from esper.scripts.telemetry import main


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Write three runs; the second one was killed."""
    parent = tmp_path / "runs"
    for index, (run_id, name, tags) in enumerate(
        [("aa11", "small", {"lr": "1"}), ("bb22", None, {}), ("cc33", "wide", {"lr": "2"})]
    ):
        run = FakeRun(
            num_rounds=index + 1, num_envs=1, num_steps=2, run_id=run_id, is_finished=index != 1
        )
        job = Job(training=run.manifest().job.training, run=RunOptions(name=name, tags=tags))
        manifest = msgspec.structs.replace(run.manifest(), job=job)
        write_run(parent / f"2026010{index + 1}T000000Z_{run_id}", run.lines(), manifest)
    return parent


def ids(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines()[1:]]


def test_table_lists_the_newest_run_first(runs: Path) -> None:
    command = [sys.executable, "-m", "esper.scripts.telemetry", "runs", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    head, first, second, third = done.stdout.splitlines()
    assert head.split()[:6] == ["id", "name", "task", "controller", "engine", "state"]
    assert first.split()[:7] == ["cc33", "wide", "digits", "ppo", "auto", "completed", "3/3"]
    assert first.endswith("lr=2")
    assert second.split()[:6] == ["bb22", "digits", "ppo", "auto", "killed", "2/2"]
    assert third.startswith("aa11")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--sort", "rounds"], ["cc33", "bb22", "aa11"]),
        (["--sort", "rounds", "--reverse"], ["aa11", "bb22", "cc33"]),
        (["--sort", "name"], ["aa11", "cc33", "bb22"]),
        (["--filter", "state=killed"], ["bb22"]),
        (["--filter", "name=*"], ["cc33", "aa11"]),
        (["--filter", "lr=?", "--filter", "name=sm*"], ["aa11"]),
        (["--limit", "1"], ["cc33"]),
    ],
)
def test_rows_are_filtered_and_sorted(
    runs: Path, words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", str(runs), *words]) == 0
    assert ids(capsys.readouterr().out) == expected


def test_json_has_every_fact_of_a_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(runs), "--json", "--filter", "id=aa11"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["name"], row["tags"], row["state"]) == ("small", {"lr": "1"}, "completed")
    assert row["directory"].endswith("aa11")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_table_fits_the_terminal(
    runs: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["runs", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert {"id", "name", "state", "accuracy", "return"} <= set(lines[0].split())
    assert ("engine" in lines[0]) == (width >= 120)
    assert telemetry_runs.COLUMNS.keys() >= set(lines[0].split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere: no such directory; name the one that holds runs"),
        ([".", "--sort", "rouns"], "unknown column 'rouns'; did you mean 'rounds'?"),
        ([".", "--limit", "-1"], "--limit -1: must be at least 1"),
        ([".", "--filter", "x"], "--filter x: expected KEY=VALUE"),
    ],
)
def test_mistake_is_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert main(["runs", "."]) == 0
    assert capsys.readouterr().out == "no run in .\n"
