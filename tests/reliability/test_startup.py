"""From its first instruction on, one signal ends a command with exit code 130 and no traceback."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.builders.tiny_runs import short_run
from tests.builders.tiny_tasks import TINY
from tools.soak.startup import SIGNALS, Trial, check_left, send_and_look, trial_commands

NUM_TRIALS = 6
WAIT_S = 100
AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["SIGNAL_AT"]:
            for number in os.environ["SIGNALS"].split():
                os.kill(os.getpid(), int(number))
sys.meta_path.insert(0, Finder())
"""
"""Runs before the command's first instruction; sends signals when a module is about to load."""


def signalled_at_import(
    folder: Path, module: str, arguments: list[str], *numbers: signal.Signals
) -> "subprocess.CompletedProcess[str]":
    (folder / "sitecustomize.py").write_text(AT_IMPORT)
    sent = " ".join(str(int(number)) for number in numbers)
    path = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env=os.environ | {"PYTHONPATH": path, "SIGNAL_AT": module, "SIGNALS": sent},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


TRAIN = ["esper.scripts.train", "wait", "--task", "digits", "--rounds", "500", "--telemetry-dir"]
COUNT = ["esper.scripts.telemetry", "count"]


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("module", ["argparse", "torch._C", "torch.optim"])
def test_signal_while_a_training_command_loads_ends_it_and_leaves_nothing(
    module: str, number: signal.Signals, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    ended = signalled_at_import(tmp_path, module, [*TRAIN, str(runs)], number)
    assert (ended.returncode, ended.stderr) == (130, "")
    assert not runs.exists()


@pytest.mark.parametrize("module", ["argparse", "msgspec", "esper.nissa.analysis.counting"])
def test_signal_while_a_reading_command_loads_ends_it(module: str, tmp_path: Path) -> None:
    ended = signalled_at_import(tmp_path, module, [*COUNT, str(tmp_path)], signal.SIGTERM)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_hang_up_is_ignored_below_nohup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ended = signalled_at_import(
            tmp_path, "argparse", ["esper.scripts.train", "presets"], signal.SIGHUP
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ended.returncode == 0
    assert "cifar_baseline" in ended.stdout


def test_signal_at_any_moment_from_exec_on_ends_a_command(tmp_path: Path) -> None:
    rng = random.Random(11)
    run_dir = short_run(tmp_path / "run", TINY)
    commands = trial_commands(run_dir, tmp_path / "runs")
    for _ in range(NUM_TRIALS):
        delay_s = rng.uniform(0.0, 2.0)
        send_and_look(Trial(rng.choice(commands), rng.choice(SIGNALS), delay_s))
    check_left(tmp_path / "runs")
