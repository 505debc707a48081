"""How two sides are compared: in turn, on the same machine, at the same time of day."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tools.bench.workloads import Workload

__all__ = ["Sample", "bare_halves", "sampled", "seconds", "spread", "thread_seconds"]


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
        """Say how far apart the repetitions are."""
        return spread(self.values)


def spread(values: Sequence[float]) -> str:
    """Say how many repetitions there were and between which values they lie."""
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


def sampled(measure: Callable[[], float], num_repetitions: int) -> Sample:
    """Repeat a measurement; a first one that only warms up is thrown away."""
    measure()
    return Sample(tuple(measure() for _ in range(num_repetitions)))


@contextmanager
def bare_halves(workload: Workload) -> Iterator[Callable[[], float]]:
    """Start a process per half of the envs; gives what runs both and returns the seconds."""
    env_ids = range(workload.num_envs)
    processes = [_start_half(workload, half) for half in (env_ids[0::2], env_ids[1::2])]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield partial(_run_all, processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _start_half(workload: Workload, env_ids: Sequence[int]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tools.bench.bare_loop", workload.name]
    command += ["--envs", ",".join(map(str, env_ids)), "--steps", str(workload.num_steps)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _run_all(processes: Sequence[subprocess.Popen[str]]) -> float:
    started_s = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    return time.perf_counter() - started_s
