"""Signals from the first instruction of a command on: prompt exit, no traceback."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.builders.tiny_runs import short_run
from tests.builders.tiny_tasks import TINY
from tools.bench.rows import Row

from esper.leyline.errors import ExitCode
from esper.nissa.analysis.validation import validate_run
from esper.nissa.storage.journal import EVENTS_FILE

QUICK_SIGNALS, FULL_SIGNALS = 30, 500
MAX_DELAY_S = 3.0
WAIT_S = 600.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class End(StrEnum):
    """How a process ended that received a signal."""

    CLEAN = "exit code 130"
    BEFORE = "in the interpreter's own start-up"
    """The interpreter had not reached the first line of the command: its defaults applied."""
    DONE = "the command had ended"


class Trial(NamedTuple):
    """One command, the signal that it gets, and when."""

    arguments: Sequence[str]
    number: signal.Signals
    delay_s: float


def trial_commands(run_dir: Path, telemetry_dir: Path) -> list[list[str]]:
    """Return commands that load everything; all but the last outlast any delay."""
    train = [sys.executable, "-m", "esper.scripts.train"]
    telemetry = [sys.executable, "-m", "esper.scripts.telemetry"]
    run = ["--task", "digits", "--rounds", "500", "--telemetry-dir", str(telemetry_dir)]
    return [
        [*train, "wait", *run],
        [*train, "ppo", "--serve", "127.0.0.1:0", *run],
        [*telemetry, "tail", "-f", str(run_dir)],
        [*telemetry, "serve", str(run_dir), "--address", "127.0.0.1:0"],
        [*telemetry, "count", str(run_dir)],
    ]


def send_and_look(trial: Trial) -> End:
    """Start a command, send one signal, and check how it ends."""
    process = subprocess.Popen(
        trial.arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    time.sleep(trial.delay_s)
    has_ended = process.poll() is not None
    has_begun = handles_signals(process.pid)
    process.send_signal(trial.number)
    try:
        output, _ = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{trial}: the signal was ignored") from None
    end = End.DONE if has_ended else _end_of(process.returncode, trial.number, output)
    assert end is not None, f"{trial}: exit code {process.returncode}: {output}"
    assert end is not End.BEFORE or not has_begun, f"{trial}: the command's first line had run"
    assert end is not End.DONE or "count" in trial.arguments, f"{trial}: nothing ends it but {end}"
    return end


def handles_signals(process: int) -> bool:
    """Return whether a command has set its handlers: the last one it sets is that of SIGHUP."""
    with suppress(OSError):  # it has ended
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            name, _, mask = line.partition(":")
            if name == "SigCgt":
                return bool(int(mask, 16) >> (signal.SIGHUP - 1) & 1)
    return False


def _end_of(code: int, number: signal.Signals, output: str) -> End | None:
    if "Traceback" not in output and code in (ExitCode.INTERRUPTED, ExitCode.OK):
        return End.CLEAN if code else End.DONE
    # No module of Esper was running yet.
    is_before = "/esper/" not in output
    killed = code == -number and not output
    is_pythons_own = number is signal.SIGINT and "KeyboardInterrupt" in output and is_before
    return End.BEFORE if killed or is_pythons_own else None


def check_left(telemetry_dir: Path) -> None:
    """Assert that the runs that were begun are valid, without temporary files."""
    for run_dir in telemetry_dir.glob("*_*"):
        left = [path.name for path in run_dir.rglob("*.tmp")]
        assert not left, f"left behind: {left}"
        if (run_dir / EVENTS_FILE).exists() and (run_dir / EVENTS_FILE).stat().st_size:
            found = validate_run(run_dir)
            assert found.is_valid, found.findings


def rows(is_quick: bool) -> Iterator[Row]:
    """Send one signal at random moments after exec: row L11."""
    target = QUICK_SIGNALS if is_quick else FULL_SIGNALS
    rng = random.Random(11)
    ends: Counter[End] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_dir = short_run(folder / "run", TINY)
        commands = trial_commands(run_dir, folder / "runs")
        while ends[End.CLEAN] < target:
            delay_s = rng.uniform(0.0, MAX_DELAY_S)
            ends[send_and_look(Trial(rng.choice(commands), rng.choice(SIGNALS), delay_s))] += 1
        check_left(folder / "runs")
    yield Row(
        name="L11 one signal from exec on, exit code 130",
        measured=ends[End.CLEAN],
        target=target,
        unit="signals",
        is_at_least=True,
        note=f"0 to {MAX_DELAY_S:.0f} s; SIGINT, SIGTERM, SIGHUP; besides, {ends[End.BEFORE]} came "
        f"in the interpreter's own start-up and {ends[End.DONE]} after the command's end",
    )
