"""Benchmarks of the dashboard: cost of serving, and time to open a large run."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import anyio
from tests.karn.runs import append_lines, write_run
from tests.karn.story import Story
from websockets.sync.client import ClientConnection, connect

from esper.leyline.telemetry import Event, EventScope, encode_event
from esper.nissa.bus.hub import TelemetryHub
from tools.bench.live_server import cpu_seconds, served_hub, server_pid
from tools.bench.rows import Row, bench
from tools.bench.telemetry import fresh_hub

RATE_PER_S = 1_000
NUM_FIRST = 1_000
"""Events that the page has before the measurement."""
T = TypeVar("T")


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


def wait_for_event(viewer: ClientConnection, last_seq: int) -> None:
    """Read patches until the view has reached an event."""
    mark = f'"last_seq":{last_seq},'
    while mark not in str(viewer.recv(timeout=600)):
        pass


@bench("V1")
def serving_cost(is_quick: bool) -> Iterator[Row]:
    """Measure the share of one core that serving 64 envs at 1,000 events/s to one page takes.

    Once by the server of a run, which is told of every block, and once by that of a directory.
    """
    num_events = NUM_FIRST + RATE_PER_S * (3 if is_quick else 15)
    story = list(islice(Story(num_rounds=4, num_envs=64, num_steps=30).events(), num_events))
    for name, share in (
        ("a run", anyio.run(_share_of_run, story)),
        ("a directory", _directory_share([encode_event(event) for event in story])),
    ):
        yield Row(
            name=f"V1 serving the view of {name} at 1,000 events/s",
            measured=100 * share,
            target=3.0,
            unit="% of a core",
        )


async def _share_of_run(story: Sequence[Event]) -> float:
    with fresh_hub() as hub:
        _emit(hub, story[:NUM_FIRST])
        async with served_hub(hub) as url:
            return await anyio.to_thread.run_sync(_run_share, hub, f"{url}/view", story)


def _run_share(hub: TelemetryHub, address: str, story: Sequence[Event]) -> float:
    with connect(address, max_size=None, open_timeout=60) as viewer:
        wait_for_event(viewer, NUM_FIRST - 1)
        emit = partial(_emit_at, story[NUM_FIRST:], 1, partial(_emit, hub))
        return _share(server_pid(), emit, viewer, len(story) - 1)


def _emit(hub: TelemetryHub, story: Iterable[Event]) -> None:
    for event in story:
        scope = EventScope(event.round, event.step, event.env_id, event.episode_id)
        hub.emit(event.data, scope, event.severity)


def _directory_share(lines: Sequence[bytes]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = write_run(Path(folder) / "run", lines[:NUM_FIRST])
        with served(run_dir) as (process, address), connect(address, max_size=None) as viewer:
            wait_for_event(viewer, NUM_FIRST - 1)
            emit = partial(_emit_at, lines[NUM_FIRST:], 50, partial(append_lines, run_dir))
            return _share(process.pid, emit, viewer, len(lines) - 1)


def _emit_at(story: Sequence[T], burst: int, emit: Callable[[Sequence[T]], None]) -> None:
    """Emit in bursts, 1,000 events a second."""
    start_s = time.monotonic()
    for sent in range(0, len(story), burst):
        emit(story[sent : sent + burst])
        time.sleep(max(start_s + (sent + burst) / RATE_PER_S - time.monotonic(), 0.0))


def _share(pid: int, emit: Callable[[], None], viewer: ClientConnection, last_seq: int) -> float:
    """Return the share of a core that a process takes until a page has all that is emitted."""
    used_s, start_s = cpu_seconds(pid), time.monotonic()
    emit()
    wait_for_event(viewer, last_seq)
    return (cpu_seconds(pid) - used_s) / (time.monotonic() - start_s)


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
