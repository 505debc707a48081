"""Benchmarks of training: whole runs compared with a bare loop, and the cost of parts."""

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Final

import anyio
import torch

from esper.leyline.telemetry import EventType
from esper.leyline.workers import Build, Train
from esper.nissa.bus.hub import TelemetryHub
from esper.simic.training.run_monitors import Monitor
from esper.tolaria.lanes import wait_for_all
from esper.tolaria.stopping import StopFlag
from esper.tolaria.worker import Worker
from tools.bench.bare_loop import BareLoop
from tools.bench.live_server import served_hub
from tools.bench.memory import peak_kib
from tools.bench.pairing import BareHalves, Sample, bare_halves, sampled, seconds, spread
from tools.bench.replay import recorded_run
from tools.bench.rows import Point, Row, bench
from tools.bench.workloads import C64, DIGITS, FLOOR, GROWTH, Workload, run_workload

COMMANDS: Final = ("wait", "ppo")
MAX_OVER_LIMIT: Final = 1.15
MAX_OVER_FLOOR: Final = 1.1
MIN_SHARE_OF_CEILING: Final = 0.88
ENV_COUNTS: Final = (1, 2, 4, 8, 16, 32, 64)
MIN_GROWTH_ENVS: Final = 16
"""Few envs make up for it by more rounds: a short measurement is mostly noise."""
PASSIVE_CLIENT: Final = 1_000_000_000
"""Events that a client waits for who is to stay until the run is over."""


NUM_REPETITIONS: Final = 5


def repetitions(is_quick: bool) -> Iterator[bool]:
    """Yield for each repetition whether it counts: the first of the long form only warms up.

    In the quick form that is done once for all rows.
    """
    if is_quick:
        _warm_up()
        yield True
    else:
        yield from (False, *[True] * NUM_REPETITIONS)


@cache
def _warm_up() -> None:
    run_workload(replace(C64, num_steps=1))


# --- Whole runs beside the bare loop --------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Comparison:
    """Esper beside the bare loop, repetition by repetition."""

    wall: list[float] = field(default_factory=list)
    """Seconds of Esper's whole run over those of the bare loop."""
    cpu: list[float] = field(default_factory=list)
    """The same in CPU time, of which a busy machine takes nothing away."""
    ceilings: list[float] = field(default_factory=list)
    """What a second process brings the bare loop, at the time."""

    @property
    def ceiling(self) -> float:
        """Return the middle one of the ceilings."""
        return statistics.median(self.ceilings)

    def wall_row(self, name: str, target: float) -> Row:
        """Return the wall time beside its target."""
        wall = Sample(tuple(self.wall))
        note = f"{wall.note}; ceiling {self.ceiling:.2f}"
        return Row(name=name, measured=wall.median, target=target, unit="ratio", note=note)

    def cpu_row(self, name: str) -> Row:
        """Return the CPU time."""
        cpu = Sample(tuple(self.cpu))
        return Row(name=f"{name}, CPU", measured=cpu.median, unit="CPU ratio", note=cpu.note)


Costs = tuple[float, float]
"""Seconds of wall and CPU time."""


def beside_bare_loop(
    workload: Workload,
    command: str,
    halves: BareHalves,
    is_quick: bool,
    measure: Callable[[], Costs] | None = None,
) -> Comparison:
    """Run a workload and the bare loop alternately.

    Args:
        workload: what is run.
        command: who decides.
        halves: measure the ceiling.
        is_quick: one repetition instead of several.
        measure: runs the workload and returns its costs; by default on threads.
    """
    # Runs are repeatable, so what this one grows is what all of them grow. It also warms up.
    _, replay = recorded_run(workload, command=command)
    bare = BareLoop(workload, replay=replay)
    halves.prepare(workload, replay)
    if not is_quick:
        halves.run()
    if measure is None:
        measure = partial(timed, partial(run_workload, workload, command=command))
    elif not is_quick:
        measure()
    found = Comparison()
    for _ in range(1 if is_quick else NUM_REPETITIONS):
        bare_s, bare_cpu_s = timed(bare.run)
        esper_s, esper_cpu_s = measure()
        found.wall.append(esper_s / bare_s)
        found.cpu.append(esper_cpu_s / bare_cpu_s)
        found.ceilings.append(bare_s / halves.run())
    return found


def timed(call: Callable[[], object]) -> Costs:
    """Return the seconds that a call takes, and those of all threads' CPU time."""
    began_cpu_s = time.process_time()
    wall_s = seconds(call)
    return wall_s, time.process_time() - began_cpu_s


def _compared(
    name: str, workload: Workload, is_quick: bool, target: float | None = None
) -> Iterator[Row]:
    """Compare a run that only waits and one that grows; the ceiling sets the target by default."""
    torch.set_num_threads(1)
    for command in COMMANDS:
        found = beside_bare_loop(workload, command, bare_halves(), is_quick)
        row_name = f"{name}, {command} / bare loop"
        yield found.wall_row(row_name, target or MAX_OVER_LIMIT / found.ceiling)
        yield found.cpu_row(row_name)


@bench("T1")
def c64_run(is_quick: bool) -> Iterator[Row]:
    """Measure a whole run where hosts have real work."""
    yield from _compared("T1 c64", replace(C64, num_steps=1) if is_quick else C64, is_quick)


@bench("T2")
def floor_run(is_quick: bool) -> Iterator[Row]:
    """Measure a whole run where orchestration is everything."""
    workload = replace(FLOOR, num_steps=4) if is_quick else FLOOR
    yield from _compared("T2 floor", workload, is_quick, MAX_OVER_FLOOR)


@bench("digits")
def digits_run(is_quick: bool) -> Iterator[Row]:
    """Measure a round of the default job."""
    workload = replace(DIGITS, num_steps=3) if is_quick else DIGITS
    yield from _compared("digits", workload, is_quick)


@bench("T3")
def lanes(is_quick: bool) -> Iterator[Row]:
    """Measure what a second lane brings, and what a second process would have brought."""
    torch.set_num_threads(1)
    workload = replace(C64, num_steps=1) if is_quick else C64
    bare = BareLoop(workload)
    gains, ceilings = [], []
    halves = bare_halves()
    halves.prepare(workload)
    for counts in repetitions(is_quick):
        one_s = round_s(workload, lanes=1)
        two_s = round_s(workload, lanes=2)
        ceiling = seconds(bare.run) / halves.run()
        if counts:
            gains.append(one_s / two_s)
            ceilings.append(ceiling)
    gain, ceiling_sample = Sample(tuple(gains)), Sample(tuple(ceilings))
    yield Row(
        name="T3 two lanes / one lane, c64",
        measured=gain.median,
        target=MIN_SHARE_OF_CEILING * ceiling_sample.median,
        unit="speed-up",
        is_at_least=True,
        note=f"{gain.note}; ceiling {ceiling_sample.median:.2f}",
    )


def round_s(workload: Workload, *, command: str = "wait", lanes: int | None = None) -> float:
    """Return how long the rounds of a run took, without its start and end."""
    result = run_workload(workload, command=command, lanes=lanes)
    return sum(summary.duration_s for summary in result.history)


# --- Telemetry, update, loop ----------------------------------------------------------------------


@bench("T4")
def telemetry_cost(is_quick: bool) -> Iterator[Row]:
    """Measure the CPU time of lanes and control with a log and a live subscriber, and without."""
    torch.set_num_threads(1)
    workload = replace(DIGITS, num_steps=4 if is_quick else 20)
    ratios = []
    for counts in repetitions(is_quick):
        silent_s = worker_cpu_s(workload, level="off")
        subscribed_s = worker_cpu_s(workload, num_subscribers=1)
        if counts:
            ratios.append(subscribed_s / silent_s)
    sample = Sample(tuple(ratios))
    yield Row(
        name="T4 telemetry normal with a subscriber / off",
        measured=sample.median,
        target=1.03,
        unit="CPU ratio",
        note=sample.note,
    )


def worker_cpu_s(
    workload: Workload, *, command: str = "ppo", level: str = "normal", num_subscribers: int = 0
) -> float:
    """Run a workload and return the CPU time that its lanes and control have used."""
    used_s: list[float] = []
    monitors: list[Monitor] = [partial(_note_worker_cpu, used_s)]
    if num_subscribers:
        monitors.append(partial(_serve_clients, num_subscribers))
    run_workload(workload, command=command, level=level, monitors=monitors)
    return used_s[0]


async def _note_worker_cpu(used_s: list[float], hub: TelemetryHub) -> None:
    """Note, when the run is over and its threads still live, what lanes and control have used."""
    await hub.live.feed.wait_closed()
    used_s.append(sum(map(_thread_cpu_s, _workers())))


def _workers() -> Iterator[threading.Thread]:
    for thread in threading.enumerate():
        if thread.name.startswith(("lane-", "control")):
            yield thread


def _thread_cpu_s(thread: threading.Thread) -> float:
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


async def _serve_clients(num_clients: int, hub: TelemetryHub) -> None:
    async with served_hub(hub) as url:
        command = [sys.executable, "-m", "tools.bench.live_clients", url]
        command += ["--clients", str(num_clients), "--events", str(PASSIVE_CLIENT)]
        async with await anyio.open_process(command, stdout=DEVNULL, stderr=DEVNULL):
            await hub.live.feed.wait_closed()


@bench("T6")
def update_share(is_quick: bool) -> Iterator[Row]:
    """Measure the share of the PPO update in a round of the default job."""
    workload = replace(DIGITS, num_steps=5) if is_quick else DIGITS
    sample = sampled(partial(_update_share, workload), repetitions(is_quick))
    yield Row(
        name="T6 PPO update, share of a digits round",
        measured=100 * sample.median,
        target=15.0,
        unit="%",
        note=spread([100 * value for value in sample.values]),
    )


def _update_share(workload: Workload) -> float:
    update_ms: list[float] = []
    result = run_workload(workload, read=partial(_read_update_ms, update_ms))
    return update_ms[0] / 1e3 / result.history[0].duration_s


def _read_update_ms(found: list[float], run_dir: Path) -> None:
    wanted = EventType.PPO_UPDATE_COMPLETED.value
    for line in (run_dir / "events.jsonl").read_bytes().splitlines():
        event = json.loads(line)
        if event["event_type"] == wanted:
            found.append(event["data"]["update_ms"])


@bench("loop lag")
def loop_lag(is_quick: bool) -> Iterator[Row]:
    """Measure how late the event loop is while a round of the default job runs."""
    lags_s: list[float] = []
    workload = replace(DIGITS, num_steps=5) if is_quick else DIGITS
    run_workload(workload, monitors=[partial(note_lags, lags_s)])
    lags_s.sort()
    yield Row(
        name="loop lag, p99 in a digits round",
        measured=1e3 * lags_s[int(0.99 * len(lags_s))],
        target=50.0,
        unit="ms",
        note=f"{len(lags_s)} samples, at most {1e3 * lags_s[-1]:.0f} ms",
    )


async def note_lags(lags_s: list[float], hub: TelemetryHub) -> None:
    """Note how late the event loop is, every 5 ms until the run is over."""
    while not hub.live.feed.is_closed:
        due_s = anyio.current_time() + 0.005
        await anyio.sleep_until(due_s)
        lags_s.append(anyio.current_time() - due_s)


# --- Dispatch, start-up, memory, growth -----------------------------------------------------------


class _IdleWork:
    """Does nothing to envs that are not there."""

    def build(self, _round_index: int, env_id: int) -> int:
        return env_id

    def begin_train(self, _env: int, _step: int) -> None: ...

    def train_batch(self, _env: int, _batch_index: int, _batch: int) -> None: ...

    def finish_train(self, _env: int) -> None: ...

    def validate(self, _env: int, _step: int, _beat: Callable[[], None]) -> Any: ...

    def apply(self, _envs: Any, _decision: Any, _failures: Any, _beat: Any) -> Any: ...

    def memory(self, _envs: Any) -> Any:
        return {}

    def release(self, _env: int) -> None: ...


@bench("T7")
def dispatch(is_quick: bool) -> Iterator[Row]:
    """Measure the cost of dispatching a batch to an env that does nothing."""
    num_batches, num_envs = 2_000 if is_quick else 10_000, 4
    for num_lanes in (1, 2):
        per_pass = partial(anyio.run, _idle_pass_s, num_lanes, num_envs, num_batches)
        sample = sampled(per_pass, repetitions(is_quick))
        yield Row(
            name=f"T7 dispatch per env-batch, lanes: {num_lanes}",
            measured=1e6 * sample.median / (num_batches * num_envs),
            target=20.0,
            unit="µs",
            note=f"4 envs; passes: {sample.note} s",
        )


async def _idle_pass_s(num_lanes: int, num_envs: int, num_batches: int) -> float:
    worker = Worker[int, int](
        env_ids=range(num_envs),
        num_lanes=num_lanes,
        work=_IdleWork(),
        batches=partial(_idle_batches, num_envs, num_batches),
        stop=StopFlag(),
    )
    await wait_for_all([worker.submit(Build(round=0))])
    started_s = time.perf_counter()
    await wait_for_all([worker.submit(Train(step=0))])
    passed_s = time.perf_counter() - started_s
    worker.close()
    return passed_s


def _idle_batches(num_envs: int, num_batches: int, _round: int, _step: int) -> Iterable[list[int]]:
    return ([batch] * num_envs for batch in range(num_batches))


@bench("T8")
def start_up(is_quick: bool) -> Iterator[Row]:
    """Measure the start-up time of short commands above that of an empty interpreter."""
    log = Path(__file__).parent / "small.jsonl"
    log.write_text('{"event_type":"A"}\n' * 100, encoding="ascii")
    commands = {
        "esper-train --help": (["esper.scripts.train", "--help"], 0.3),
        "esper-train tasks": (["esper.scripts.train", "tasks"], 0.3),
        "esper-telemetry count": (["esper.scripts.telemetry", "count", str(log)], 0.25),
    }
    try:
        for name, (arguments, target_s) in commands.items():
            above = []
            for _ in range(2 if is_quick else 7):
                empty_s = seconds(partial(_run_python, ["-c", "pass"]))
                above.append(seconds(partial(_run_python, ["-m", *arguments])) - empty_s)
            sample = Sample(tuple(above))
            yield Row(
                name=f"T8 start-up, {name}",
                measured=sample.median,
                target=target_s,
                unit="s",
                note=sample.note,
            )
    finally:
        log.unlink()


def _run_python(arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


_RUN_C64: Final = """
from dataclasses import dataclass, field, replace
from tools.bench.workloads import C64, run_workload
run_workload(replace(C64, num_steps={num_steps}))
"""
_RUN_BARE_C64: Final = """
from dataclasses import dataclass, field, replace
from tools.bench.workloads import C64
from tools.bench.bare_loop import BareLoop
BareLoop(replace(C64, num_steps={num_steps})).run()
"""


@bench("T9")
def memory(is_quick: bool) -> Iterator[Row]:
    """Measure the peak of a whole run's memory in terms of what torch takes by itself."""
    if not Path("/proc/self/status").exists():
        return
    num_steps = 1 if is_quick else C64.num_steps
    ratios, bare_ratios = [], []
    for _ in range(1 if is_quick else NUM_REPETITIONS):
        empty = peak_kib("import torch")
        ratios.append(peak_kib(_RUN_C64.format(num_steps=num_steps)) / empty)
        if not is_quick:
            bare_ratios.append(peak_kib(_RUN_BARE_C64.format(num_steps=num_steps)) / empty)
    note = f"{spread(ratios)}; torch alone {empty / 1024:.0f} MiB"
    measured = Sample(tuple(ratios)).median
    yield Row(
        name="T9 memory, c64 / import torch", measured=measured, target=1.6, unit="ratio", note=note
    )
    if bare_ratios:
        bare = Sample(tuple(bare_ratios))
        yield Row(
            name="T9 memory, bare loop / import torch",
            measured=bare.median,
            unit="ratio",
            note=bare.note,
        )


@bench("T10")
def growth_of_cost(is_quick: bool) -> Iterator[Row]:
    """Measure env-steps per CPU second of the lanes from 1 to 64 envs, each with the same work."""
    torch.set_num_threads(1)
    env_counts = (1, 4, 16) if is_quick else ENV_COUNTS
    rates: dict[int, list[float]] = {count: [] for count in env_counts}
    for counts in repetitions(is_quick):
        for count in env_counts:
            # Episodes are as short for all, so that building an env weighs the same.
            num_rounds = max(MIN_GROWTH_ENVS // count, 1)
            workload = replace(GROWTH, num_envs=count, num_steps=2, num_rounds=num_rounds)
            used_s = worker_cpu_s(workload, command="wait")
            if counts:
                rates[count].append(workload.num_env_steps / used_s)
    samples = {count: Sample(tuple(values)) for count, values in rates.items()}
    medians = [sample.median for sample in samples.values()]
    yield Row(
        name="T10 env-steps per CPU second, spread over 1 to 64 envs",
        measured=100 * (max(medians) / min(medians) - 1),
        target=10.0,
        unit="%",
    )
    for count, sample in samples.items():
        yield Row(
            name=f"G envs: {count}",
            measured=sample.median,
            unit="env-steps per CPU second of the lanes",
            note=sample.note,
            point=Point("envs", count),
        )
