"""A run that is killed at any moment and resumed is the run that was never killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.reliability.killed_run import ROUNDS
from tests.simic.training.runs import last_checkpoint, lines_of, tiny_run, weights_digest

from esper.simic.training.resuming import find_latest

ROOT = Path(__file__).parents[2]
NUM_KILLS = 4
WAIT_S = 60


def start(telemetry_dir: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.reliability.killed_run", str(telemetry_dir)]
    return subprocess.Popen(command, cwd=ROOT, env=environment)


def log_size(telemetry_dir: Path) -> int:
    """Return the bytes of all logs, those that were cut off and kept among them."""
    return sum(path.stat().st_size for path in telemetry_dir.glob("*/events*.jsonl"))


def kill_after_more_bytes(telemetry_dir: Path, num_bytes: int) -> None:
    """Run until the logs have grown by so much, then kill the process."""
    process = start(telemetry_dir)
    deadline_s = time.monotonic() + WAIT_S
    goal = log_size(telemetry_dir) + num_bytes
    while log_size(telemetry_dir) < goal and process.poll() is None:
        assert time.monotonic() < deadline_s, "the run does not move"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait(WAIT_S)


@pytest.mark.parametrize("seed", [1])
def test_killed_and_resumed_run_equals_the_one_that_was_never_killed(
    seed: int, tmp_path: Path
) -> None:
    whole = tiny_run(tmp_path / "whole", n_episodes=ROUNDS).run_dir
    whole_bytes = log_size(tmp_path / "whole")
    moments = random.Random(seed)
    killed = tmp_path / "killed"
    for _ in range(NUM_KILLS):
        kill_after_more_bytes(killed, moments.randrange(1, whole_bytes // 2))
    assert start(killed).wait(WAIT_S) == 0

    run_dir = find_latest(killed, None).parent.parent
    assert lines_of(run_dir) == lines_of(whole)
    assert weights_digest(last_checkpoint(run_dir)) == weights_digest(last_checkpoint(whole))
