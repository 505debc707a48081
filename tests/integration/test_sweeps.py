"""Sweeps as a user has them: interrupted, on worker processes and on Ray, several at once."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

COMMAND = (sys.executable, "-m", "esper.scripts.train", "sweep", "--config", "sweep.toml")
SWEEP = """
[training]
task = "probe:memory"
n_episodes = 2
n_envs = 2
lstm_hidden_dim = 8
feature_dim = 8

[run]
engine = "processes"
workers = 2
fsync = "never"

[sweep]
name = "try"
trials = 1000
rounds = 1
is_pruned = false
storage = "sqlite:///try.db"

[sweep.space]
"training.lr" = { low = 1e-5, high = 1e-2, log = true }
"""


def test_a_sweep_that_is_interrupted_is_continued_by_the_same_command(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    with subprocess.Popen(
        COMMAND, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        first = command.stdout.readline()
        command.send_signal(signal.SIGINT)
        _, complaint = command.communicate(timeout=60)
    assert first.startswith("trial 0 complete: "), complaint
    assert command.returncode == 130
    assert "the same command continues" in complaint

    done = subprocess.run(
        [*COMMAND, "--trials", "2", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout)["trials"] if row["state"] == "complete"]
    study = optuna.load_study(study_name="try", storage=f"sqlite:///{tmp_path / 'try.db'}")
    assert len(rows) >= 2
    assert rows[0]["task_return"] == study.best_value
    assert rows[0]["settings"] == study.best_params


@contextmanager
def begun(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Start a sweep command, which is killed at the end of the block."""
    with subprocess.Popen(
        [*COMMAND, *flags], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        try:
            yield command
        finally:
            command.kill()


def standard_output(command: subprocess.Popen[str]) -> IO[str]:
    assert command.stdout is not None
    return command.stdout


def listed_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the runs of the sweep as `esper-telemetry runs` lists them."""
    listing = [sys.executable, "-m", "esper.scripts.telemetry", "runs", "--json"]
    done = subprocess.run(
        [*listing, "--filter", "sweep=try"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_commands_that_search_one_study_share_its_trials_and_those_of_one_that_is_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    shared = ("--storage", "try.journal", "--engine", "threads", "--trials", "6")
    with begun(tmp_path, *shared, "--rounds", "1000000") as endless:
        while not list(tmp_path.glob("runs/*/checkpoints/*.pt")):
            assert endless.poll() is None, endless.communicate()
            time.sleep(0.05)
        with begun(tmp_path, *shared) as first, begun(tmp_path, *shared) as second:
            commands = (first, second)
            # They cannot end before: a trial that another command runs is not theirs to leave out.
            lines = [standard_output(command).readline() for command in commands]
            endless.kill()
            # Not by `communicate`: it would miss what reading the first lines has buffered.
            rests = [standard_output(command).read() for command in commands]
            codes = [command.wait(timeout=100) for command in commands]
    assert codes == [0, 0], rests
    outputs = [line + rest for line, rest in zip(lines, rests, strict=True)]
    tables = [output.split("\n\n")[1] for output in outputs]
    assert tables[0] == tables[1]
    printed = [line.split(":")[0] for output in outputs for line in output.splitlines()]
    assert printed.count("trial 0 failed") == 1

    backend = JournalFileBackend(str(tmp_path / "try.journal"))
    trials = optuna.load_study(study_name="try", storage=JournalStorage(backend)).trials
    finished = {trial.number: trial for trial in trials if trial.state.name == "COMPLETE"}
    assert [trial.state.name for trial in trials] == ["FAIL", *["COMPLETE"] * 6]
    assert len({str(trial.params) for trial in finished.values()}) == 6
    assert trials[0].params in [trial.params for trial in finished.values()]
    assert sorted(line for line in printed if line.endswith("complete")) == [
        f"trial {number} complete" for number in finished
    ]
    runs = listed_runs(tmp_path)
    assert sorted(int(run["tags"]["trial"]) for run in runs) == list(range(7))
    assert {run["run_id"] for run in runs if run["state"] == "completed"} == {
        run for trial in finished.values() for run in trial.user_attrs["runs"]
    }
    assert [path.name for path in tmp_path.glob("*.in-use*")] == ["try.journal.in-use"]


def test_trials_on_ray_have_the_results_of_those_on_threads(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "sweep.toml").write_text(SWEEP)
    tables = []
    for engine in ("ray", "threads"):
        study = ("--trials", "2", "--storage", f"sqlite:///{engine}.db", "--engine", engine)
        done = subprocess.run(
            [*COMMAND, *study, "--name", engine, "--json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        tables.append(json.loads(done.stdout)["trials"])
    facts = [[(row["settings"], row["task_return"]) for row in table] for table in tables]
    assert facts[0] == facts[1]
    engines = {run["name"]: run["engine"] for run in listed_runs(tmp_path)}
    assert engines == {"ray": "ray", "threads": "threads"}
