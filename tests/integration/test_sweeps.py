"""A sweep as a user has it: the command, interrupted and continued, on worker processes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import optuna

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
