"""Visitors without pauses: what a served run gets done beside them in wall time, and its memory.

Each kind of visitor is compared with as many processes that use the CPU without a connection: the
machine's cores are shared in both cases, so that the ratio shows what the connections cost.
"""

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tests.builders.process_tree import server_process, tree_bytes
from tools.bench.rows import Row
from tools.soak.visitor import KINDS

NUM_VISITORS = 2
"""Processes, each with several connections: as many as the reference machine has cores."""
WARM_UP_BYTES = 100_000
SETTLE_S = 0.75
LOOK_S = 0.25
WAIT_S = 600.0
ATTACKS = tuple(kind for kind in KINDS if kind != "busy")
FLAGS = (
    *("ppo", "--lanes", "2", "--task", "digits", "--rounds", "1000000"),
    *("--envs", "2", "--episode-length", "5"),
)
TRAIN = (sys.executable, "-m", "esper.scripts.train", *FLAGS)


class Memory(NamedTuple):
    """Bytes of the run with all of its processes, and of the server among them."""

    tree: int
    server: int


class VisitedRun:
    """A run that serves."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self._folder = folder
        where = ["--telemetry-dir", str(folder)]
        self.process = subprocess.Popen([*command, *where], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        address = self.process.stdout.readline().split()[-1]
        self.port = int(address.rstrip("/").rpartition(":")[2])
        # Read to its end, or the run would wait for room in the pipe.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.peak = Memory(0, 0)

    @property
    def log_bytes(self) -> int:
        """Return the size of the event log."""
        return sum(path.stat().st_size for path in self._folder.glob("*/events.jsonl"))

    def warm_up(self) -> None:
        """Wait until the run is past its start."""
        deadline_s = time.monotonic() + WAIT_S
        while self.log_bytes < WARM_UP_BYTES:
            assert time.monotonic() < deadline_s, "the run has not started"
            time.sleep(LOOK_S)

    def memory(self) -> Memory:
        """Return the memory that is resident now."""
        return Memory(tree_bytes(self.process.pid), tree_bytes(self._server))

    @cached_property
    def _server(self) -> int:
        try:
            return server_process(self.process.pid)
        except LookupError:
            return self.process.pid  # which serves itself

    def progress_beside(self, kind: str, seconds: float) -> float:
        """Return the log's growth in bytes per second of wall time beside some visitors."""
        with visitors(kind, self.port):
            time.sleep(SETTLE_S)
            began_s, before = time.monotonic(), self.log_bytes
            while time.monotonic() - began_s < seconds:
                time.sleep(LOOK_S)
                self.peak = max(self.peak, self.memory())
            speed = (self.log_bytes - before) / (time.monotonic() - began_s)
        assert self.process.poll() is None, f"visitors of kind {kind} have ended the run"
        return speed

    def end(self) -> None:
        """Kill the run; its server ends with it."""
        self.process.kill()
        self.process.wait()


@contextmanager
def visitors(kind: str, port: int) -> Iterator[None]:
    """Let visitors come until the end of the block."""
    command = [sys.executable, "-m", "tools.soak.visitor", kind, str(port)]
    processes = [subprocess.Popen(command) for _ in range(NUM_VISITORS)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Visited(NamedTuple):
    """What visitors have done to a run."""

    ratios: dict[str, list[float]]
    """Progress beside each kind of visitor, of that beside busy loops."""
    gained: Memory
    """The peak of memory, less what there was before."""


def visit(
    command: Sequence[str], kinds: Sequence[str], num_repetitions: int, seconds: float
) -> Visited:
    """Let visitors come to the run of a command."""
    ratios: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        run = VisitedRun(Path(name), command)
        try:
            run.warm_up()
            before = run.memory()
            for _ in range(num_repetitions):
                for kind in kinds:
                    # Alternately first, so that a run that gets slower favours neither.
                    order = ("busy", kind) if len(ratios[kind]) % 2 else (kind, "busy")
                    speeds = {name: run.progress_beside(name, seconds) for name in order}
                    ratios[kind].append(speeds[kind] / speeds["busy"])
        finally:
            run.end()
    gained = Memory(run.peak.tree - before.tree, run.peak.server - before.server)
    return Visited(dict(ratios), gained)


def rows(is_quick: bool) -> Iterator[Row]:
    """Let every kind of visitor come: row L13."""
    # Five pairs of each kind in under five minutes.
    num_repetitions, seconds = (1, 3.0) if is_quick else (5, 2.5)
    command = [*TRAIN, "--serve", "127.0.0.1:0"]
    ratios, gained = visit(command, ATTACKS, num_repetitions, seconds)
    medians = {kind: statistics.median(found) for kind, found in ratios.items()}
    worst = min(medians, key=medians.__getitem__)
    others = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in medians.items())
    yield Row(
        name="L13 progress beside visitors, worst kind",
        measured=medians[worst],
        target=0.8,
        unit="of beside busy loops",
        is_at_least=True,
        note=f"{worst}; medians of {num_repetitions}: {others}",
    )
    yield Row(
        name="L13 memory gained by the process tree",
        measured=gained.tree / 2**20,
        target=64.0,
        unit="MiB",
        note=f"run and server, peak over {len(ATTACKS) * num_repetitions} visits; "
        f"{gained.server / 2**20:.0f} of it in the server",
    )
