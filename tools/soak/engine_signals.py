"""Signals at random moments of runs on processes and on Ray: prompt, clean, nothing left behind."""

import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from tools.bench.rows import Row
from tools.soak.startup import End, Trial, check_left, send_and_look

__all__ = ["Stops", "processes_below", "rows", "stop_at_random"]

SMALL = ("--envs", "4", "--episode-length", "5", "--batch-size", "250", "--lstm-hidden-dim", "8")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
MAX_STOP_S = 2.0
LEFT_S = 30.0
"""How long what a command has started may live on after it, on a busy machine."""
POLL_S = 0.05


class Engine(NamedTuple):
    """An engine, and how long after exec its signals come."""

    name: str
    max_delay_s: float
    """Until well after its first round has begun."""
    num_quick: int
    num_full: int


ENGINES = (Engine("processes", 6.0, 5, 100), Engine("ray", 15.0, 2, 40))


class Stops(NamedTuple):
    """How the commands ended, and how long each took from its signal to its end."""

    ends: Counter[End]
    seconds: Sequence[float]


def stop_at_random(engine: Engine, rng: random.Random, target: int, folder: Path) -> Stops:
    """Start runs and send one signal to each, until enough of them have handled theirs."""
    module = [sys.executable, "-m", "esper.scripts.train", "ppo", "--task", "digits", *SMALL]
    where = ["--engine", engine.name, "--workers", "2", "--telemetry-dir", str(folder / "runs")]
    command = [*module, *where, "--rounds", "500"]
    ends: Counter[End] = Counter()
    seconds: list[float] = []
    while ends[End.CLEAN] < target:
        trial = Trial(command, rng.choice(SIGNALS), rng.uniform(0.0, engine.max_delay_s))
        began_s = time.perf_counter()
        end = send_and_look(trial)
        seconds.append(time.perf_counter() - began_s - trial.delay_s)
        ends[end] += 1
        _check_processes(folder)
    check_left(folder / "runs")
    left = {path.name for path in folder.iterdir()} - {"runs"}
    assert not left, f"left behind: {left}"
    return Stops(ends, seconds)


def processes_below(folder: Path) -> list[int]:
    """Return the processes whose temporary files are in a directory."""
    marker, found = f"TMPDIR={folder}\0".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if marker in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def _check_processes(folder: Path) -> None:
    deadline_s = time.monotonic() + LEFT_S
    while left := processes_below(folder):
        assert time.monotonic() < deadline_s, f"processes left behind: {left}"
        time.sleep(POLL_S)


def rows(is_quick: bool) -> Iterator[Row]:
    """Stop runs on each engine: row L21."""
    for engine in ENGINES:
        target = engine.num_quick if is_quick else engine.num_full
        # The paths of Ray's sockets are below this directory and must be short.
        with tempfile.TemporaryDirectory(prefix="e-", dir="/tmp") as name:
            here = {"TMPDIR": name, "HOME": name}
            with patch.dict(os.environ, here):
                stops = stop_at_random(engine, random.Random(21), target, Path(name))
        yield Row(
            name=f"L21 stopped by a signal, {engine.name}",
            measured=stops.ends[End.CLEAN],
            target=target,
            unit="stops",
            is_at_least=True,
            note=f"SIGINT and SIGTERM, 0 to {engine.max_delay_s:.0f} s after exec; besides, "
            f"{stops.ends[End.BEFORE]} came in the interpreter's own start-up",
        )
        yield Row(
            name=f"L21 signal to exit, {engine.name}, slowest",
            measured=max(stops.seconds),
            target=MAX_STOP_S,
            unit="s",
            note=f"median {statistics.median(stops.seconds):.2f} s",
        )
