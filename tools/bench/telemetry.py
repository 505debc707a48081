"""Benchmarks of telemetry: cost per event, durable throughput, latency and fan-out."""

import gc
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Final

import anyio

from esper.leyline.config import FsyncPolicy
from esper.leyline.payloads import SeedFossilized
from esper.leyline.telemetry import Draft, EventScope
from esper.nissa.bus.feed import FEED_BYTES
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.live.address import ServerAddress, listen
from esper.nissa.live.app import build_app
from esper.nissa.live.security import Security
from esper.nissa.live.server import serve
from tools.bench.live_server import cpu_seconds, served_hub, server_pid
from tools.bench.pairing import spread
from tools.bench.rows import Row, bench

SCOPE = EventScope(1, 2, 3, 4)
MAX_AHEAD: Final = 2_000
"""Events that fit into the window of a client that lags behind."""


def payload() -> SeedFossilized:
    """Make a typed event of about ten fields with its envelope."""
    return SeedFossilized(
        slot_id="r0c1",
        seed_id="seed-7",
        blueprint="conv_light",
        num_params=4_321,
        age_steps=23,
        contribution_pp=1.25,
        improvement_pp=2.5,
        blending_delta_pp=0.125,
    )


@contextmanager
def fresh_hub(fsync: FsyncPolicy = FsyncPolicy.ROUND) -> Iterator[TelemetryHub]:
    """Open a hub on a directory that goes away."""
    with (
        tempfile.TemporaryDirectory() as folder,
        TelemetryHub(Path(folder), run_id="0123abcd", fsync=fsync) as hub,
    ):
        yield hub


@bench("E1")
def emit_cost(is_quick: bool) -> Iterator[Row]:
    """Measure `emit` on a thread that also does other work, as training does."""
    num_events = 5_000 if is_quick else 50_000
    costs_ns: list[int] = []
    with fresh_hub() as hub:
        for _ in range(num_events):
            sum(range(1_000))
            event = payload()
            start_ns = time.perf_counter_ns()
            hub.emit(event, SCOPE)
            costs_ns.append(time.perf_counter_ns() - start_ns)
    costs_ns.sort()
    median_us, p99_us = costs_ns[num_events // 2] / 1e3, costs_ns[num_events * 99 // 100] / 1e3
    yield Row(name="E1 emit, median", measured=median_us, target=3.0, unit="µs")
    yield Row(name="E1 emit, p99", measured=p99_us, target=30.0, unit="µs")


@bench("E2")
def durable_rate(is_quick: bool) -> Iterator[Row]:
    """Measure events per second from the first emit to the last byte on disk."""
    num_events, num_repeats = (50_000, 3) if is_quick else (300_000, 5)
    rates, cpu_rates = [], []
    for _ in range(num_repeats):
        drafts = [Draft(payload(), SCOPE) for _ in range(num_events)]
        gc.collect()
        with fresh_hub(FsyncPolicy.INTERVAL) as hub:
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            hub.publish(drafts)
            hub.flush()
            rates.append(num_events / (time.perf_counter() - start_s))
            cpu_rates.append(num_events / (time.process_time() - start_cpu_s))
    yield Row(
        name="E2 durable events",
        measured=statistics.median(rates),
        target=200_000,
        unit="1/s",
        is_at_least=True,
        note=f"{spread(rates)}; {statistics.median(cpu_rates):,.0f} per CPU second",
    )


@bench("E5")
def live_latency(is_quick: bool) -> Iterator[Row]:
    """Measure emit to client with ten clients in another process and 1,000 events a second."""
    num_events = 1_000 if is_quick else 10_000
    result = anyio.run(drive_clients, 10, num_events, 1_000.0)
    yield Row(name="E5 live latency, p99", measured=result["p99_s"] * 1e3, target=15.0, unit="ms")


@bench("E6")
def fan_out(is_quick: bool) -> Iterator[Row]:
    """Measure deliveries per second to 64 clients, events going out as fast as they are taken."""
    num_events = 5_000 if is_quick else 40_000
    result = anyio.run(drive_clients, 64, num_events, None)
    took_s = result["took_s"]
    yield Row(
        name="E6 deliveries to 64 clients",
        measured=result["events"] / took_s,
        target=500_000,
        unit="1/s",
        is_at_least=True,
        note=f"of a core, the server takes {result['server_cpu_s'] / took_s:.0%} and "
        f"the clients {result['cpu_s'] / took_s:.0%}",
    )


async def drive_clients(num_clients: int, num_events: int, rate: float | None) -> dict[str, float]:
    """Serve a hub as a run does, emit to a process of clients, and return what they measured."""
    with fresh_hub() as hub:
        async with served_hub(hub) as url:
            command = [sys.executable, "-m", "tools.bench.live_clients", url]
            command += ["--clients", str(num_clients), "--events", str(num_events)]
            if rate is None:
                call = partial(_emit_unless_behind, hub, num_events)
            else:
                command.append("--timed")
                call = partial(_emit_at, hub, num_events, rate)
            return await anyio.to_thread.run_sync(_emit_to_clients, command, num_clients, call)


def _emit_to_clients(
    command: list[str], num_clients: int, emit: Callable[[IO[str]], None]
) -> dict[str, float]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as clients:
        assert clients.stdout is not None
        for _ in range(num_clients):
            assert clients.stdout.readline() == "ready\n"
        server, start_s = server_pid(), time.time()
        used_s = cpu_seconds(server)
        emit(clients.stdout)
        while not (line := clients.stdout.readline()).startswith("{"):
            assert line, "the clients have ended"
        measured: dict[str, float] = json.loads(line)
        server_cpu_s = cpu_seconds(server) - used_s
    return measured | {"took_s": measured["end_s"] - start_s, "server_cpu_s": server_cpu_s}


def _emit_at(hub: TelemetryHub, num_events: int, rate: float, _progress: IO[str]) -> None:
    start_s = time.perf_counter()
    for number in range(num_events):
        ahead_s = start_s + number / rate - time.perf_counter()
        if ahead_s > 0:
            time.sleep(ahead_s)
        hub.emit(payload(), SCOPE)


def _emit_unless_behind(hub: TelemetryHub, num_events: int, progress: IO[str]) -> None:
    """Emit as fast as the slowest client takes it, so that nothing is dropped."""
    num_taken = 0
    for number in range(num_events):
        while number - num_taken > MAX_AHEAD:
            num_taken = int(progress.readline())
        hub.emit(payload(), SCOPE)


@bench("E7")
def stopped_subscriber(is_quick: bool) -> Iterator[Row]:
    """Compare the CPU time of a producing thread with and without a client that never reads."""
    num_events, num_repeats = (5_000, 3) if is_quick else (20_000, 9)
    undisturbed, disturbed = [], []
    for _ in range(num_repeats):
        undisturbed.append(anyio.run(_producer_cpu_s, num_events, False)["cpu_s"])
        result = anyio.run(_producer_cpu_s, num_events, True)
        disturbed.append(result["cpu_s"])
    ratio = statistics.median(disturbed) / statistics.median(undisturbed)
    yield Row(
        name="E7 stopped subscriber, CPU of producer", measured=ratio, target=1.03, unit="ratio"
    )
    held_mib = result["held_bytes"] / FEED_BYTES
    yield Row(name="E7 stopped subscriber, buffered", measured=held_mib, target=1.0, unit="MiB")


async def _producer_cpu_s(num_events: int, is_watched: bool) -> dict[str, float]:
    with fresh_hub() as hub:
        app = build_app(source=hub.live, run_dir=hub.run_dir, security=Security(host="127.0.0.1"))
        async with anyio.create_task_group() as tasks:
            address = await tasks.start(serve, app, listen(ServerAddress("127.0.0.1", 0)))
            client = _stopped_client(address) if is_watched else None
            result = await anyio.to_thread.run_sync(_work_and_emit, hub, num_events)
            if client is not None:
                assert hub.live.subscribers, "the stopped client was not connected"
                client.close()
            tasks.cancel_scope.cancel()
    return result


def _stopped_client(address: ServerAddress) -> socket.socket:
    """Complete the handshake and never read again."""
    client = socket.create_connection((address.host, address.port))
    client.sendall(
        f"GET /ws HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    return client


def _work_and_emit(hub: TelemetryHub, num_events: int) -> dict[str, float]:
    result: dict[str, float] = {}

    def produce() -> None:
        start_s = time.thread_time()
        for _ in range(num_events):
            sum(range(2_000))
            hub.emit(payload(), SCOPE)
        result["cpu_s"] = time.thread_time() - start_s

    producer = threading.Thread(target=produce)
    producer.start()
    producer.join()
    hub.flush()
    held = hub.live.feed.read(hub.live.feed.oldest_seq, 1 << 40)
    result["held_bytes"] = len(held.data) if held is not None else 0
    return result


@bench("E9")
def end_beside_a_stopped_subscriber(is_quick: bool) -> Iterator[Row]:
    """Measure for how long a client that never reads keeps a run's server from ending."""
    delays_s = []
    for _ in range(1 if is_quick else 5):
        calm_s = anyio.run(_end_s, False)
        delays_s.append(anyio.run(_end_s, True) - calm_s)
    yield Row(
        name="E9 end of a run, delayed by a stopped subscriber",
        measured=statistics.median(delays_s),
        target=1.0,
        unit="s",
        note=spread(delays_s),
    )


async def _end_s(has_stopped_client: bool) -> float:
    """Return how long a server goes on after its run has ended."""
    with fresh_hub() as hub:
        app = build_app(source=hub.live, run_dir=hub.run_dir, security=Security(host="127.0.0.1"))
        async with anyio.create_task_group() as tasks:
            address = await tasks.start(serve, app, listen(ServerAddress("127.0.0.1", 0)))
            client = _stopped_client(address) if has_stopped_client else None
            await anyio.to_thread.run_sync(_fill_connection, hub, client is not None)
            await anyio.to_thread.run_sync(hub.close)
            start_s = time.perf_counter()
        delay_s = time.perf_counter() - start_s
        if client is not None:
            client.close()
    return delay_s


def _fill_connection(hub: TelemetryHub, has_client: bool) -> None:
    """Emit until nothing more fits into the buffers of a client that does not read."""
    num_events = 2_000
    while True:
        hub.publish([Draft(payload(), SCOPE)] * num_events)
        hub.flush()
        time.sleep(0.05)  # for the server to take it
        if not has_client or any(item.lag > num_events for item in hub.live.subscribers):
            return


@bench("leyline import")
def leyline_import(is_quick: bool) -> Iterator[Row]:
    """Measure what importing the contracts adds to an empty process."""
    num_repeats = 3 if is_quick else 11
    empty, loaded = [], []
    for _ in range(num_repeats):
        empty.append(_process_s("pass"))
        loaded.append(_process_s("import esper.leyline.telemetry, esper.leyline.jobs"))
    measured = statistics.median(loaded) - statistics.median(empty)
    yield Row(name="leyline import", measured=measured, target=0.15, unit="s")


def _process_s(code: str) -> float:
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start_s
