"""Benchmarks of the dashboard: cost of serving, and time to open a large run."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import sysconf
from pathlib import Path

from tests.karn.runs import append_lines, write_run
from tests.karn.story import Story
from websockets.sync.client import ClientConnection, connect

from tools.bench.rows import Row, bench

RATE_PER_S = 1_000
TICK_S = 0.05


@contextmanager
def served(run_dir: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve a run directory in a process of its own; gives it and the address of its view."""
    command = [sys.executable, "-m", "esper.scripts.telemetry", "serve", str(run_dir)]
    process = subprocess.Popen(
        [*command, "--address", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split()[2]
        yield process, address.replace("http://", "ws://") + "ws/view"
    finally:
        process.kill()
        process.communicate()


def cpu_seconds(pid: int) -> float:
    """Return the processor time a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / sysconf("SC_CLK_TCK")


def wait_for_event(viewer: ClientConnection, last_seq: int) -> None:
    """Read patches until the view has reached an event."""
    mark = f'"last_seq":{last_seq},'
    while mark not in str(viewer.recv(timeout=60)):
        pass


@bench("V1")
def serving_cost(is_quick: bool) -> Iterator[Row]:
    """Measure the share of one core that serving 64 envs at 1,000 events/s to one page takes."""
    lines = list(Story(num_rounds=4, num_envs=64, num_steps=30).lines())
    num_events = RATE_PER_S * (3 if is_quick else 15)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = write_run(Path(folder) / "run", lines[:1_000])
        with served(run_dir) as (process, address), connect(address, max_size=None) as viewer:
            wait_for_event(viewer, 999)
            used_s, start_s = cpu_seconds(process.pid), time.monotonic()
            chunk = int(RATE_PER_S * TICK_S)
            for sent in range(1_000, 1_000 + num_events, chunk):
                append_lines(run_dir, lines[sent : sent + chunk])
                due_s = start_s + (sent + chunk - 1_000) / RATE_PER_S
                time.sleep(max(due_s - time.monotonic(), 0.0))
            wait_for_event(viewer, 999 + num_events)
            share = (cpu_seconds(process.pid) - used_s) / (time.monotonic() - start_s)
    yield Row(
        name="V1 serving the view at 1,000 events/s",
        measured=100 * share,
        target=3.0,
        unit="% of a core",
    )


@bench("V2")
def opening_time(is_quick: bool) -> Iterator[Row]:
    """Measure the time from starting the server until a page has all of a large run."""
    num_rounds, num_events = (3, 20_000) if is_quick else (15, 100_000)
    lines = list(Story(num_rounds=num_rounds, num_envs=64, num_steps=30).lines())[:num_events]
    assert len(lines) == num_events, "the story is long enough"
    with tempfile.TemporaryDirectory() as folder:
        run_dir = write_run(Path(folder) / "run", lines)
        start_s = time.monotonic()
        with served(run_dir) as (_, address), connect(address, max_size=None) as viewer:
            wait_for_event(viewer, num_events - 1)
            opened_s = time.monotonic() - start_s
    name = f"V2 opening a run of {num_events:,} events, 64 envs"
    yield Row(name=name, measured=opened_s, target=5.0, unit="s")
