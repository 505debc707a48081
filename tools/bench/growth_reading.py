"""Benchmarks without targets: commands on longer and longer logs, and a server of more clients."""

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import msgspec
from tests.nissa.fake_run import FakeRun
from websockets.sync.client import connect

from esper.nissa.reading.lines import LOG_NAME
from tools.bench.reading import peak_bytes, peak_tree_bytes, write_log
from tools.bench.rows import Point, Row, bench
from tools.bench.telemetry import drive_clients
from tools.bench.view import served, wait_for_event

CLIENT_COUNTS: Final = (1, 10, 32, 64, 128)
"""The server refuses more than 128 at a time."""
LOG_MB: Final = (10, 30, 100, 300, 1_000)
NUM_REPETITIONS: Final = 3

_SHAPE: Final = FakeRun(num_envs=8, num_steps=50)
_MIB: Final = 1 << 20


class _Cost(NamedTuple):
    """What one execution of a command took."""

    wall_s: float
    peak_mib: float
    """The highest sum of memory of its processes."""


@bench("G logs")
def longer_logs(is_quick: bool) -> Iterator[Row]:
    """Measure `count`, `diff` of equal runs, `report`, and `serve` until a page has everything."""
    round_bytes = sum(len(line) + 1 for line in replace(_SHAPE, num_rounds=1).lines())
    for size_mb in (1, 2) if is_quick else LOG_MB:
        shape = replace(_SHAPE, num_rounds=math.ceil(size_mb * 1e6 / round_bytes))
        with tempfile.TemporaryDirectory() as folder:
            run, again = Path(folder, "run"), Path(folder, "again")
            last_seq = _write_run(run, shape)
            _write_run(again, replace(shape, run_id="ffffffff", started=1.8e9))
            report = ["report", str(run), "--output", str(Path(folder, "report.html"))]
            commands: dict[str, Callable[[], _Cost]] = {
                "count": partial(_cost, ["count", str(run)]),
                "diff, equal": partial(_cost, ["diff", str(run), str(again)]),
                "report": partial(_cost, report),
                "serve": partial(_opening_cost, run, last_seq),
            }
            for name, measure in commands.items():
                costs = [measure() for _ in range(1 if is_quick else NUM_REPETITIONS)]
                yield from _rows(name, size_mb, costs)


def _rows(name: str, size_mb: int, costs: Sequence[_Cost]) -> Iterator[Row]:
    for plot, unit, values in (
        ("logs", "s", [cost.wall_s for cost in costs]),
        ("memory", "MiB", [cost.peak_mib for cost in costs]),
    ):
        yield Row(
            name=f"G {plot}, {name}: {size_mb:,} MB",
            measured=statistics.median(values),
            unit=unit,
            note=f"{len(values)} repetitions, {min(values):.3g} to {max(values):.3g}",
            point=Point(plot, size_mb, name),
        )


def _write_run(run_dir: Path, shape: FakeRun) -> int:
    """Write a run as the bus would have left it; return the seq of its last event."""
    run_dir.mkdir()
    write_log(run_dir / LOG_NAME, (line + b"\n" for line in shape.lines()))
    (run_dir / "operational.jsonl").touch()
    (run_dir / "run.json").write_bytes(msgspec.json.encode(shape.manifest()))
    with (run_dir / LOG_NAME).open("rb") as log:
        return sum(1 for _ in log) - 1


def _cost(arguments: Sequence[str]) -> _Cost:
    start_s = time.perf_counter()
    peak = peak_tree_bytes([sys.executable, "-m", "esper.scripts.telemetry", *arguments])
    return _Cost(time.perf_counter() - start_s, peak / _MIB)


def _opening_cost(run_dir: Path, last_seq: int) -> _Cost:
    """Start a server, and wait until a page has the whole run."""
    start_s = time.perf_counter()
    with served(run_dir) as (process, address), connect(address, max_size=None) as viewer:
        wait_for_event(viewer, last_seq)
        return _Cost(time.perf_counter() - start_s, peak_bytes(process.pid) / _MIB)


@bench("G server")
def server(is_quick: bool) -> Iterator[Row]:
    """Measure the server of a run at 1,000 events a second, which go to 1 to 128 clients."""
    num_events = 2_000 if is_quick else 10_000
    for count in CLIENT_COUNTS[:2] if is_quick else CLIENT_COUNTS:
        result = anyio.run(drive_clients, count, num_events, 1_000.0)
        yield Row(
            name=f"G server, clients: {count}",
            measured=100 * result["server_cpu_s"] / result["took_s"],
            unit="% of a core",
            note=f"events arrive within {1e3 * result['p99_s']:.1f} ms (p99)",
            point=Point("server", count),
        )
