"""Benches of training: a whole run of Esper beside a bare loop, and what its parts cost."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Final

import anyio
import torch

from esper.leyline.telemetry import EventType
from esper.nissa.hub import TelemetryHub
from esper.nissa.security import Security
from esper.nissa.server import ServerAddress, build_app, serve
from esper.tolaria.engine import LaneEngine
from esper.tolaria.stopping import StopFlag
from tools.bench.bare_loop import BareLoop
from tools.bench.pairing import Sample, bare_halves, sampled, seconds, spread
from tools.bench.rows import Row, bench
from tools.bench.workloads import C64, DIGITS, FLOOR, GROWTH, Workload, run_workload

COMMANDS: Final = ("wait", "ppo")
MAX_OVER_LIMIT: Final = 1.15
MIN_SHARE_OF_CEILING: Final = 0.88
ENV_COUNTS: Final = (1, 2, 4, 8, 16, 32, 64)
PASSIVE_CLIENT: Final = 1_000_000_000
"""Events that a client waits for who is to stay until the run is over."""


def _num_repetitions(is_quick: bool) -> int:
    return 1 if is_quick else 5


# --- Whole runs beside the bare loop --------------------------------------------------------------


def _beside_bare_loop(
    workload: Workload, command: str, num_repetitions: int
) -> tuple[Sample, Sample]:
    """Return how long Esper takes in terms of the bare loop, and what a second core can give."""
    ratios, ceilings = [], []
    bare = BareLoop(workload)
    with bare_halves(workload) as run_halves:
        for repetition in range(num_repetitions + 1):
            bare_s = seconds(bare.run)
            esper_s = seconds(partial(run_workload, workload, command=command))
            halves_s = run_halves()
            # The first repetition of each warms up.
            if repetition:
                ratios.append(esper_s / bare_s)
                ceilings.append(bare_s / halves_s)
    return Sample(tuple(ratios)), Sample(tuple(ceilings))


@bench("T1")
def c64_run(is_quick: bool) -> Iterator[Row]:
    """Measure a whole run where hosts have real work."""
    torch.set_num_threads(1)
    workload = replace(C64, num_steps=3) if is_quick else C64
    for command in COMMANDS:
        ratio, ceiling = _beside_bare_loop(workload, command, _num_repetitions(is_quick))
        yield Row(
            name=f"T1 c64, {command} / bare loop",
            measured=ratio.median,
            target=MAX_OVER_LIMIT / ceiling.median,
            unit="ratio",
            note=f"{ratio.note}; ceiling {ceiling.median:.2f}",
        )


@bench("T2")
def floor_run(is_quick: bool) -> Iterator[Row]:
    """Measure a whole run where orchestration is everything."""
    torch.set_num_threads(1)
    workload = replace(FLOOR, num_steps=8) if is_quick else FLOOR
    for command in COMMANDS:
        ratio, ceiling = _beside_bare_loop(workload, command, _num_repetitions(is_quick))
        yield Row(
            name=f"T2 floor, {command} / bare loop",
            measured=ratio.median,
            target=1.1,
            unit="ratio",
            note=f"{ratio.note}; ceiling {ceiling.median:.2f}",
        )


@bench("T3")
def lanes(is_quick: bool) -> Iterator[Row]:
    """Measure what a second lane brings, and what a second process would have brought."""
    torch.set_num_threads(1)
    workload = replace(C64, num_steps=3) if is_quick else C64
    bare = BareLoop(workload)
    gains, ceilings = [], []
    with bare_halves(workload) as run_halves:
        for repetition in range(_num_repetitions(is_quick) + 1):
            one_s = _round_s(workload, lanes=1)
            two_s = _round_s(workload, lanes=2)
            ceiling = seconds(bare.run) / run_halves()
            if repetition:
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


def _round_s(workload: Workload, *, command: str = "wait", lanes: int | None = None) -> float:
    """Return how long the rounds of a run took, without its start and end."""
    result = run_workload(workload, command=command, lanes=lanes)
    return sum(summary.duration_s for summary in result.history)


# --- Telemetry, update, loop ----------------------------------------------------------------------


@bench("T4")
def telemetry_cost(is_quick: bool) -> Iterator[Row]:
    """Measure the CPU time of lanes and control with a log and a live subscriber, and without."""
    torch.set_num_threads(1)
    workload = replace(DIGITS, num_steps=6 if is_quick else 20)
    ratios = []
    for repetition in range(_num_repetitions(is_quick) + 1):
        silent_s = _worker_cpu_s(workload, level="off", is_watched=False)
        told_s = _worker_cpu_s(workload, level="normal", is_watched=True)
        if repetition:
            ratios.append(told_s / silent_s)
    sample = Sample(tuple(ratios))
    yield Row(
        name="T4 telemetry normal and watched / off",
        measured=sample.median,
        target=1.03,
        unit="CPU ratio",
        note=sample.note,
    )


def _worker_cpu_s(workload: Workload, *, level: str, is_watched: bool) -> float:
    used_s: list[float] = []
    companions = [partial(_note_worker_cpu, used_s)]
    if is_watched:
        companions.append(_serve_one_client)
    run_workload(workload, level=level, companions=companions)
    return used_s[0]


async def _note_worker_cpu(used_s: list[float], _hub: TelemetryHub) -> None:
    """Note, when the run is over and its threads still live, what lanes and control have used."""
    try:
        await anyio.sleep_forever()
    finally:
        used_s.append(sum(map(_thread_cpu_s, _workers())))


def _workers() -> Iterator[threading.Thread]:
    for thread in threading.enumerate():
        if thread.name.startswith(("lane-", "control")):
            yield thread


def _thread_cpu_s(thread: threading.Thread) -> float:
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


async def _serve_one_client(hub: TelemetryHub) -> None:
    app = build_app(source=hub.live, run_dir=hub.run_dir, security=Security(host="127.0.0.1"))
    async with anyio.create_task_group() as tasks:
        address = await tasks.start(serve, app, ServerAddress("127.0.0.1", 0))
        command = [sys.executable, "-m", "tools.bench.live_clients", f"ws://{address}/ws"]
        command += ["--clients", "1", "--events", str(PASSIVE_CLIENT)]
        async with await anyio.open_process(command, stdout=DEVNULL, stderr=DEVNULL):
            await anyio.sleep_forever()


@bench("T6")
def update_share(is_quick: bool) -> Iterator[Row]:
    """Measure which share of a round of the default job learning takes."""
    workload = replace(DIGITS, num_steps=10) if is_quick else DIGITS
    sample = sampled(partial(_update_share, workload), _num_repetitions(is_quick))
    yield Row(
        name="T6 PPO update, share of a digits round",
        measured=100 * sample.median,
        target=15.0,
        unit="%",
        note=sample.note,
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
    workload = replace(DIGITS, num_steps=10) if is_quick else DIGITS
    run_workload(workload, companions=[partial(_note_lags, lags_s)])
    lags_s.sort()
    yield Row(
        name="loop lag, p99 in a digits round",
        measured=1e3 * lags_s[int(0.99 * len(lags_s))],
        target=50.0,
        unit="ms",
        note=f"{len(lags_s)} looks, at most {1e3 * lags_s[-1]:.0f} ms",
    )


async def _note_lags(lags_s: list[float], _hub: TelemetryHub) -> None:
    while True:
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

    def apply(self, _env: int, _decision: object) -> Any: ...

    def release(self, _env: int) -> None: ...


@bench("T7")
def dispatch(is_quick: bool) -> Iterator[Row]:
    """Measure what it costs to bring a batch to an env that does nothing with it."""
    num_batches, num_envs = 2_000 if is_quick else 10_000, 4
    for num_lanes in (1, 2):
        per_pass = partial(anyio.run, _idle_pass_s, num_lanes, num_envs, num_batches)
        sample = sampled(per_pass, _num_repetitions(is_quick))
        yield Row(
            name=f"T7 dispatch per env-batch, lanes: {num_lanes}",
            measured=1e6 * sample.median / (num_batches * num_envs),
            target=20.0,
            unit="µs",
            note=f"4 envs; passes: {sample.note} s",
        )


async def _idle_pass_s(num_lanes: int, num_envs: int, num_batches: int) -> float:
    engine = LaneEngine[int, int](
        num_envs=num_envs,
        num_lanes=num_lanes,
        work=_IdleWork(),
        batches=partial(_idle_batches, num_envs, num_batches),
        stop=StopFlag(),
    )
    await engine.build_round(0)
    started_s = time.perf_counter()
    await engine.train_pass(0)
    passed_s = time.perf_counter() - started_s
    await engine.close()
    return passed_s


def _idle_batches(num_envs: int, num_batches: int, _round: int, _step: int) -> Iterable[list[int]]:
    return ([batch] * num_envs for batch in range(num_batches))


@bench("T8")
def start_up(is_quick: bool) -> Iterator[Row]:
    """Measure what short commands take above an empty interpreter."""
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
from dataclasses import replace
from tools.bench.workloads import C64, run_workload
run_workload(replace(C64, num_steps={num_steps}))
"""
_RUN_BARE_C64: Final = """
from dataclasses import replace
from tools.bench.workloads import C64
from tools.bench.bare_loop import BareLoop
BareLoop(replace(C64, num_steps={num_steps})).run()
"""
_TELL_PEAK: Final = """
import re, pathlib
print(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
"""


@bench("T9")
def memory(is_quick: bool) -> Iterator[Row]:
    """Measure the peak of a whole run's memory in terms of what torch takes by itself."""
    if not Path("/proc/self/status").exists():
        return
    num_steps = 3 if is_quick else C64.num_steps
    ratios, bare_ratios = [], []
    for _ in range(_num_repetitions(is_quick)):
        empty = _peak_kib("import torch")
        ratios.append(_peak_kib(_RUN_C64.format(num_steps=num_steps)) / empty)
        bare_ratios.append(_peak_kib(_RUN_BARE_C64.format(num_steps=num_steps)) / empty)
    note = f"{spread(ratios)}; torch alone {empty / 1024:.0f} MiB"
    measured = Sample(tuple(ratios)).median
    yield Row(
        name="T9 memory, c64 / import torch", measured=measured, target=1.6, unit="ratio", note=note
    )
    bare = Sample(tuple(bare_ratios))
    yield Row(
        name="T9 memory, bare loop / import torch",
        measured=bare.median,
        unit="ratio",
        note=bare.note,
    )


def _peak_kib(code: str) -> float:
    """Return the most memory that a process which runs this code has ever had."""
    command = [sys.executable, "-c", code + _TELL_PEAK]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@bench("T10")
def growth_of_cost(is_quick: bool) -> Iterator[Row]:
    """Measure env-steps per second and lane from 1 to 64 envs, the work of each being the same."""
    torch.set_num_threads(1)
    counts = (1, 4, 16) if is_quick else ENV_COUNTS
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for repetition in range(_num_repetitions(is_quick) + 1):
        for count in counts:
            workload = replace(GROWTH, num_envs=count, num_steps=4 if count < 16 else 2)
            num_lanes = min(count, os.cpu_count() or 1)
            rate = workload.num_env_steps / _round_s(workload) / num_lanes
            if repetition:
                rates[count].append(rate)
    samples = {count: Sample(tuple(values)) for count, values in rates.items()}
    medians = [sample.median for sample in samples.values()]
    yield Row(
        name="T10 env-steps/s per lane, most and least apart",
        measured=100 * (max(medians) / min(medians) - 1),
        target=10.0,
        unit="%",
        note=", ".join(f"{count}: {sample.median:.1f}/s" for count, sample in samples.items()),
    )
    for count, sample in samples.items():
        yield Row(
            name=f"G envs: {count}",
            measured=sample.median,
            unit="env-steps/s per lane",
            note=spread(sample.values),
        )
