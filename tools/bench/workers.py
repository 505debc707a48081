"""Benchmarks of the engines: processes and Ray beside the bare loop, the choice, and replay."""

import json
import os
import resource
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from tests.builders.fingerprints import fingerprint

from esper.leyline.telemetry import EventType
from esper.leyline.workers import Build, Command, Train, Validate
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset
from esper.simic.training.assembly import engines
from esper.tolaria.process_port import ProcessPort
from esper.tolaria.replay import start_ports
from tools.bench.pairing import Sample, bare_halves, seconds, spread
from tools.bench.rows import Row, bench
from tools.bench.training import COMMANDS, NUM_REPETITIONS, Costs, beside_bare_loop, timed
from tools.bench.workloads import C64, DIGITS, FASHION, Workload, run_workload

NUM_WORKERS: Final = 2
MAX_PROCESSES_OVER_LIMIT: Final = 1.1
MAX_RAY_OVER_LIMIT: Final = 1.25
MAX_AUTO_OVER_BEST: Final = 1.05
ENGINES: Final = ("threads", "processes", "ray")
NUM_LONG_REPETITIONS: Final = 3
CHOICES: Final = (
    replace(DIGITS, num_rounds=4),
    replace(FASHION, num_rounds=2),
    replace(C64, num_rounds=5),
)
"""Long enough that starting workers is worth while, as in a real run."""
DEFAULT_JOB: Final = replace(DIGITS, num_envs=8, num_rounds=4)
"""Half of the rounds of `make run`."""
MAX_RUN_SHARE: Final = 2 / 3


def _on_workers(
    name: str, workload: Workload, engine: str, is_quick: bool, over_limit: float
) -> Iterator[Row]:
    """Compare whole runs on two workers with the bare loop; the ceiling sets the target."""
    torch.set_num_threads(1)
    # Imports what processes need, or starts Ray.
    run_workload(replace(workload, num_steps=1), engine=engine, workers=NUM_WORKERS)
    for command in COMMANDS:
        run = partial(run_workload, workload, command=command, engine=engine, workers=NUM_WORKERS)
        starts: list[float] = []
        found = beside_bare_loop(
            workload, command, bare_halves(), is_quick, partial(_without_start, run, starts)
        )
        row = found.wall_row(f"{name}, {engine}, {command} / bare loop", over_limit / found.ceiling)
        start_s = statistics.median(starts)
        yield replace(row, note=f"{row.note}; start of the workers, not included, {start_s:.2g} s")


def _without_start(run: Callable[[], object], starts: list[float]) -> Costs:
    """Return the costs of a run without the start of its workers, which is noted.

    Workers are warm, as in a run of many rounds.
    """
    began = len(starts)
    with patch.object(engines, "start_ports", partial(_noting_seconds, start_ports, starts)):
        wall_s, cpu_s = timed(run)
    return wall_s - sum(starts[began:]), cpu_s


def _noting_seconds(start: Callable[..., Any], noted: list[float], *arguments: Any) -> Any:
    began_s = time.perf_counter()
    started = start(*arguments)
    noted.append(time.perf_counter() - began_s)
    return started


@bench("W1")
def digits_on_processes(is_quick: bool) -> Iterator[Row]:
    """Measure the default job on two processes."""
    workload = replace(DIGITS, num_steps=3) if is_quick else DIGITS
    yield from _on_workers("W1 digits", workload, "processes", is_quick, MAX_PROCESSES_OVER_LIMIT)


@bench("W2")
def c64_on_processes(is_quick: bool) -> Iterator[Row]:
    """Measure two processes where hosts have real work."""
    workload = replace(C64, num_envs=2, num_steps=1) if is_quick else C64
    yield from _on_workers("W2 c64", workload, "processes", is_quick, MAX_PROCESSES_OVER_LIMIT)


@bench("W3")
def digits_on_ray(is_quick: bool) -> Iterator[Row]:
    """Measure the default job on two actors of a local Ray."""
    workload = replace(DIGITS, num_steps=3) if is_quick else DIGITS
    yield from _on_workers("W3 digits", workload, "ray", is_quick, MAX_RAY_OVER_LIMIT)


@bench("W4")
def choice_of_engine(is_quick: bool) -> Iterator[Row]:
    """Measure what `auto` chooses beside all three engines, in whole runs."""
    torch.set_num_threads(1)
    for workload in CHOICES:
        sized = replace(workload, num_steps=2) if is_quick else workload
        times: dict[str, list[float]] = {engine: [] for engine in (*ENGINES, "auto")}
        for engine in times:
            run_workload(replace(sized, num_rounds=1, num_steps=1), engine=engine)  # starts it
        for _ in range(1 if is_quick else NUM_LONG_REPETITIONS):
            for engine, taken in times.items():
                taken.append(seconds(partial(run_workload, sized, engine=engine)))
        medians = {engine: statistics.median(taken) for engine, taken in times.items()}
        best = min(ENGINES, key=lambda engine: medians[engine])
        origin = load_dataset(workload.task, DataRequest()).origin.value
        shown = ", ".join(f"{engine} {medians[engine]:.3g} s" for engine in medians)
        yield Row(
            name=f"W4 {workload.name}, auto / best engine",
            measured=medians["auto"] / medians[best],
            target=MAX_AUTO_OVER_BEST,
            unit="ratio",
            note=f"{shown}; {origin} data; auto: {spread(times['auto'])}",
        )


@dataclass(eq=False, slots=True)
class _Loss:
    """Kills a worker once, while it trains for some step, and notes the times."""

    step: int
    submit: Callable[[ProcessPort, Command], Any]
    built_s: dict[ProcessPort, float] = field(default_factory=dict)
    killed: ProcessPort | None = None
    first_s: float = 0.0
    """From building the envs to the validation of the step, by the worker that was not killed."""

    def watched(self, port: ProcessPort, command: Command) -> Any:
        """Submit a command, and kill the first worker that reaches the step."""
        if isinstance(command, Build):
            self.built_s[port] = time.perf_counter()
        before = [*port._pending.values()]
        answer = self.submit(port, command)
        if command == Train(step=self.step) and self.killed is None:
            # It was sent ahead: the worker reaches it when all before it is done.
            self.killed = port
            if before:
                before[-1].add_done_callback(self._kill)
            else:
                self._kill(None)
        elif command == Validate(step=self.step) and port is not self.killed:
            answer.add_done_callback(partial(self._note_first_time, port))
        return answer

    def _kill(self, _: object) -> None:
        assert self.killed is not None
        os.kill(self.killed.pid, signal.SIGKILL)

    def _note_first_time(self, port: ProcessPort, _: object) -> None:
        self.first_s = self.first_s or time.perf_counter() - self.built_s[port]


@bench("W5")
def replay(is_quick: bool) -> Iterator[Row]:
    """Measure how long a lost worker's replacement takes to catch up, beside the first time."""
    workload = replace(DIGITS, num_envs=2, num_steps=6) if is_quick else DIGITS
    step = workload.num_steps // 2
    ratios, starts = [], []
    run_workload(replace(workload, num_steps=1), engine="processes")  # imports what workers need
    for _ in range(1 if is_quick else NUM_REPETITIONS):
        ratio, start_s = _replay_ratio(workload, step)
        ratios.append(ratio)
        starts.append(start_s)
    sample = Sample(tuple(ratios))
    yield Row(
        name=f"W5 replay to step {step} / first time, digits",
        measured=sample.median,
        target=1.0,
        unit="ratio",
        note=f"{sample.note}; start of the worker, not included, {statistics.median(starts):.2g} s",
    )


def _replay_ratio(workload: Workload, step: int) -> tuple[float, float]:
    """Return the ratio and the seconds that the replacement took to start."""
    loss = _Loss(step, ProcessPort.submit)
    starts: list[float] = []
    restarts: list[float] = []
    with (
        patch.object(ProcessPort, "submit", lambda port, command: loss.watched(port, command)),
        patch.object(engines, "_start", partial(_noting_seconds, engines._start, starts)),
    ):
        run_workload(
            workload,
            engine="processes",
            workers=NUM_WORKERS,
            read=partial(_read_restarts, restarts),
        )
    (restart_s,) = restarts
    start_s = starts[-1]  # that of the replacement
    return (restart_s - start_s) / loss.first_s, start_s


def _read_restarts(found: list[float], run_dir: Path) -> None:
    for line in (run_dir / "operational.jsonl").read_bytes().splitlines():
        event = json.loads(line)
        if event["event_type"] == EventType.WORKER_RESTARTED.value:
            found.append(event["data"]["duration_s"])


@bench("W6")
def default_job(is_quick: bool) -> Iterator[Row]:
    """Measure the job of `make run` as it is executed by default beside threads."""
    workload = replace(DEFAULT_JOB, num_steps=7) if is_quick else DEFAULT_JOB
    walls, cpus, prints = [], [], set[str]()
    for _ in range(1 if is_quick else NUM_LONG_REPETITIONS):
        threads_s, threads_cpu_s = _costs(workload, "threads", prints)
        auto_s, auto_cpu_s = _costs(workload, "auto", prints)
        walls.append(auto_s / threads_s)
        cpus.append(auto_cpu_s / threads_cpu_s)
    assert len(prints) == 1, "the engines gave different runs"
    wall, cpu = Sample(tuple(walls)), Sample(tuple(cpus))
    yield Row(
        name="W6 job of make run, auto / threads",
        measured=wall.median,
        target=MAX_RUN_SHARE,
        unit="ratio",
        note=f"{wall.note}; same events and weights; CPU ratio {cpu.median:.2f}",
    )


def _costs(workload: Workload, engine: str, prints: set[str]) -> Costs:
    """Return the wall and CPU seconds of a run with all of its processes, from a cold start."""
    engines._FORK_SERVER.close()  # that of another row
    began_cpu_s = _cpu_s()
    wall_s = seconds(
        partial(
            run_workload,
            workload,
            engine=engine,
            read=lambda run_dir: prints.add(fingerprint(run_dir)),
        )
    )
    engines._FORK_SERVER.close()  # whose CPU time, with that of its forks, counts when it ends
    return wall_s, _cpu_s() - began_cpu_s


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
