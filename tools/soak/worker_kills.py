"""Kills workers at random moments, while they repeat a round too, and compares the results."""

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.builders.fingerprints import fingerprint
from tools.bench.rows import Row

from esper.leyline.config import Job
from esper.leyline.jobs import merge_job
from esper.leyline.workers import Build, Command, Reply
from esper.runtime.tasks import all_tasks
from esper.simic.training.vectorized import run_job
from esper.tolaria.process_port import ProcessPort
from esper.tolaria.ray_port import RayPort

SMALL = {
    "task": "digits",
    "n_envs": 4,
    "n_episodes": 3,
    "max_epochs": 8,
    "lstm_hidden_dim": 8,
    "feature_dim": 8,
    "batch_size_per_env": 250,
}
MAX_PER_REBUILD = 3
"""Below the number of losses in a row that ends a run."""
MARGIN = 2
"""A worker that repeats a round is killed only this many commands before it has caught up."""

MAX_END_S = 30.0
"""How long the last workers of a run may take to end after it; Ray does not wait for its own."""
POLL_S, MAX_POLLS = 0.005, 10_000
"""How often, and how many times, a replay is waited for."""

Port = ProcessPort | RayPort


@dataclass(eq=False, slots=True)
class _Progress:
    """How far one worker has come in its round, over all of its processes."""

    port: Any = None
    round: int = -1
    num_answered: int = 0
    """Commands of the round that some process has answered."""
    num_answered_by_port: int = 0
    """Commands of the round that the present process has answered."""
    blamed: int = -1
    """`num_answered` at the last kill: a second one there would quarantine an env."""
    num_killed_in_a_row: int = 0

    @property
    def is_replaying(self) -> bool:
        """Return whether the present process repeats what another one has done."""
        is_behind = self.num_answered_by_port + MARGIN < self.num_answered
        return self.port is not None and is_behind

    def may_be_killed(self) -> bool:
        """Return whether the loss of the present process must leave no trace."""
        if self.is_replaying:
            return self.num_killed_in_a_row < MAX_PER_REBUILD
        return self.num_answered > self.blamed


class WorkerKiller:
    """Kills the workers of a run of this process until enough were killed."""

    def __init__(self, port_class: type[Port], rng: random.Random, *, gap_s: float) -> None:
        """Watch the commands of all ports of a class.

        Args:
            port_class: of the workers to be killed.
            rng: draws moments and workers.
            gap_s: mean time between two kills.
        """
        self._port_class: Any = port_class
        self._rng = rng
        self._gap_s = gap_s
        self._lock = threading.Lock()
        self._workers: dict[tuple[int, ...], _Progress] = {}
        self._done = threading.Event()
        self._ports: list[Any] = []
        """All that were sent a command."""
        self.num_killed = self.num_killed_in_replay = 0

    def run(self, job: Job, max_kills: int) -> Path:
        """Run a job while workers are killed; return its directory."""
        self._workers.clear()
        self._done.clear()
        submit = self._port_class.submit
        killer = self

        def watched(port: Port, command: Command) -> "Future[Reply]":
            return killer._watch(port, command, submit(port, command))

        thread = threading.Thread(target=self._kill, args=(self.num_killed + max_kills,))
        self._port_class.submit = watched
        thread.start()
        try:
            return run_job(job).run_dir
        finally:
            self._done.set()
            thread.join()
            self._port_class.submit = submit

    def assert_nothing_left(self) -> None:
        """Wait until the processes of all workers have ended."""
        deadline_s = time.monotonic() + MAX_END_S
        pids = {pid for port in self._ports if (pid := _pid_of(port)) is not None}
        while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < deadline_s, f"workers {left} are left"
            time.sleep(POLL_S)
        self._ports.clear()

    def _watch(self, port: Port, command: Command, answer: "Future[Reply]") -> "Future[Reply]":
        with self._lock:
            progress = self._workers.setdefault(port.env_ids, _Progress())
            if isinstance(command, Build) and progress.round != command.round:
                progress.round, progress.num_answered, progress.blamed = command.round, 0, -1
                progress.num_answered_by_port = progress.num_killed_in_a_row = 0
            if progress.port is not port:
                progress.port, progress.num_answered_by_port = port, 0
                self._ports.append(port)
            number = progress.round

        def count(done: "Future[Reply]") -> None:
            with self._lock:
                is_present = progress.port is port and progress.round == number
                if done.exception() is None and is_present:
                    progress.num_answered_by_port += 1
                    if progress.num_answered_by_port > progress.num_answered:
                        progress.num_answered = progress.num_answered_by_port
                        progress.num_killed_in_a_row = 0

        answer.add_done_callback(count)
        return answer

    def _kill(self, limit: int) -> None:
        num_polls = 0
        while self.num_killed < limit and not self._done.is_set():
            # Every other kill is aimed at a worker that repeats what one before it has done.
            gap_s = POLL_S if num_polls else self._rng.expovariate(1 / self._gap_s)
            self._done.wait(gap_s)
            with self._lock:
                killed = self._kill_one(is_aimed_at_replay=num_polls > 0)
            if killed is None:
                num_polls = max(0, num_polls - 1)
            else:
                num_polls = MAX_POLLS if num_polls == 0 and killed.blamed > MARGIN + 1 else 0

    def _kill_one(self, is_aimed_at_replay: bool) -> _Progress | None:
        candidates = [
            item
            for item in self._workers.values()
            if item.may_be_killed() and (item.is_replaying or not is_aimed_at_replay)
        ]
        if not candidates:
            return None
        progress = self._rng.choice(candidates)
        is_replay = progress.is_replaying
        if not _killed(progress.port):
            return None
        progress.port = None  # until its replacement is sent its first command
        progress.num_killed_in_a_row += 1
        progress.blamed = progress.num_answered
        self.num_killed += 1
        self.num_killed_in_replay += is_replay
        return progress


def _killed(port: Any) -> bool:
    """Kill the process behind a port with SIGKILL; return whether there was one."""
    pid = None if port is None else _pid_of(port)
    if pid is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _pid_of(port: Any) -> int | None:
    """Return the process behind a port; None if it is not known yet."""
    if isinstance(port, ProcessPort):
        return port.pid
    is_known = port.place.done() and port.place.exception() is None
    return int(port.place.result()[1]) if is_known else None


def job_on(engine: str, folder: Path) -> Job:
    """Return the job that is disturbed."""
    run = {"telemetry_dir": str(folder), "fsync": "never", "engine": engine, "workers": 2}
    return merge_job(("soak", {"training": SMALL, "run": run}), tasks=all_tasks())[0]


def kill_workers(
    name: str, engine: str, port_class: type[Port], *, target: int, gap_s: float
) -> Iterator[Row]:
    """Disturb runs until enough workers were killed; every run must equal the undisturbed one."""
    rng, began_s = random.Random(18), time.perf_counter()
    killer = WorkerKiller(port_class, rng, gap_s=gap_s)
    num_runs = 0
    with tempfile.TemporaryDirectory() as folder:
        whole = fingerprint(run_job(job_on("threads", Path(folder, "whole"))).run_dir)
        while killer.num_killed < target:
            num_runs += 1
            assert num_runs <= 2 * target, f"only {killer.num_killed} kills in {num_runs} runs"
            run_dir = killer.run(
                job_on(engine, Path(folder, str(num_runs))), target - killer.num_killed
            )
            assert fingerprint(run_dir) == whole, "the disturbed run is another run"
            killer.assert_nothing_left()
    yield Row(
        name=name,
        measured=killer.num_killed,
        target=target,
        unit="kills",
        is_at_least=True,
        note=f"{num_runs} runs, each equal by SHA-256, no worker left; "
        f"{killer.num_killed_in_replay} of the kills during replay; "
        f"{time.perf_counter() - began_s:.0f} s",
    )
