"""Compares two programs by running them alternately on the same machine."""

import atexit
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import msgspec

from tools.bench.bare_loop import Order
from tools.bench.replay import NOTHING_GROWS, Replay
from tools.bench.workloads import Workload

__all__ = [
    "BareHalves",
    "Sample",
    "bare_halves",
    "sampled",
    "seconds",
    "spread",
    "thread_seconds",
]


@dataclass(frozen=True, slots=True)
class Sample:
    """Several repetitions of one figure."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the middle value."""
        return statistics.median(self.values)

    @property
    def note(self) -> str:
        """Return the spread of the repetitions as text."""
        return spread(self.values)


def spread(values: Sequence[float]) -> str:
    """Return the number of repetitions and their range as text."""
    return f"{len(values)} repetitions, {min(values):.3g} to {max(values):.3g}"


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def thread_seconds(call: Callable[[], object]) -> float:
    """Return how much CPU time of this thread a call takes."""
    started_s = time.thread_time()
    call()
    return time.thread_time() - started_s


def sampled(measure: Callable[[], float], counted: Iterable[bool]) -> Sample:
    """Repeat a measurement, and keep those that count."""
    taken = [(measure(), counts) for counts in counted]
    return Sample(tuple(value for value, counts in taken if counts))


@dataclass(eq=False, slots=True)
class BareHalves:
    """Two processes that run the bare loop on half of the envs each, at the same time."""

    processes: Sequence[subprocess.Popen[str]]
    folder: Path

    def prepare(self, workload: Workload, replay: Replay = NOTHING_GROWS) -> None:
        """Let each process load its half of a workload."""
        path = self.folder / "replay.json"
        replay.write(path)
        for index, process in enumerate(self.processes):
            order = Order(
                workload=workload.name,
                num_steps=workload.num_steps,
                env_ids=tuple(range(index, workload.num_envs, len(self.processes))),
                replay_path=str(path),
            )
            _send(process, msgspec.json.encode(order).decode())
        for process in self.processes:
            answer = _answer(process)
            assert answer == "ready\n", f"a half of the bare loop answered {answer!r}"

    def run(self) -> float:
        """Run both halves once and return the seconds until the later one was done."""
        started_s = time.perf_counter()
        for process in self.processes:
            _send(process, "")
        for process in self.processes:
            _answer(process)
        return time.perf_counter() - started_s

    def end(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.communicate()


@cache
def bare_halves() -> BareHalves:
    """Start the two processes, once for all rows: most of their time goes into importing torch."""
    command = [sys.executable, "-m", "tools.bench.bare_loop"]
    start = partial(subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folder = tempfile.TemporaryDirectory()
    halves = BareHalves([start(command) for _ in range(2)], Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(halves.end)
    return halves


def _send(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
