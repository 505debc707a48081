"""The server under attack and load: no unauthorized access, no growth, the run is unchanged."""

import multiprocessing
import os
import random
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

from tools.bench.rows import Row
from tools.soak.frames import Opcode, RawClient, frame_bytes

from esper.leyline.config import RunOptions
from esper.leyline.jobs import merge_job
from esper.runtime.tasks import all_tasks
from esper.tolaria.engine import WorkerEngine

LOOPBACK = "127.0.0.1"
TOKEN = "open sesame"
PAUSE_S = 0.005
"""Between two deeds of an attacker: on two cores it would else take the run's time by itself."""
# Made once: an attacker on the run's own cores should cost it nothing but its attacks.
FLOOD = "".join(f"X-{index}: {'y' * 100}\r\n" for index in range(10_000)).encode()
LONG_LINE = b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n"
PATHS = ("/../run.json", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/ws/../events.jsonl", "/..")
PRIVATE = (
    "/api/run",
    "/api/runs",
    "/api/runs/overlay?run=..",
    "/api/events?text=a&before=9",
    "/runs",
)
COSTLY = ("/api/runs", "/api/runs/overlay?run=..", "/run/../", "/api/events?text=none&before=99999")


def connected(port: int) -> socket.socket:
    """Return a plain connection to the server."""
    return socket.create_connection((LOOPBACK, port), timeout=20.0)


def answer_to(port: int, data: bytes) -> bytes:
    """Send bytes and return everything that comes back until the server hangs up or waits."""
    received = b""
    with connected(port) as client, suppress(ConnectionError, TimeoutError):
        client.settimeout(2.0)
        client.sendall(data)
        while piece := client.recv(65536):
            received += piece
            if b"\r\n\r\n" in received:
                break
    return received


def request(port: int, path: str, *headers: str) -> bytes:
    """Return the answer to a plain request."""
    lines = [f"GET {path} HTTP/1.1", f"Host: {LOOPBACK}:{port}", *headers]
    return answer_to(port, ("\r\n".join(lines) + "\r\n\r\n").encode())


def header_flood(port: int) -> bytes:
    """Send headers without an end."""
    return answer_to(port, f"GET / HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\n".encode() + FLOOD)


def long_line(port: int) -> bytes:
    """Ask for a path of a megabyte."""
    return answer_to(port, LONG_LINE)


def nonsense(port: int, rng: random.Random) -> bytes:
    """Send bytes that are no request at all."""
    return answer_to(port, rng.randbytes(rng.randint(1, 4096)) + b"\r\n\r\n")


def reconnect(port: int, num_times: int) -> None:
    """Come and go, now with a farewell and now without."""
    for index in range(num_times):
        with RawClient(port) as client:
            client.request(f"Authorization: Bearer {TOKEN}")
            if index % 2:
                client.send(frame_bytes(Opcode.CLOSE, b"\x03\xe8"))


def attack(port: int, until: Callable[[], bool], rng: random.Random) -> None:
    """Do all of it, over and over."""
    deeds: tuple[Callable[[], object], ...] = (
        lambda: header_flood(port),
        lambda: long_line(port),
        lambda: nonsense(port, rng),
        lambda: request(port, rng.choice(PATHS)),
        lambda: request(port, rng.choice(PRIVATE), "Authorization: Bearer wrong"),
        lambda: request(port, rng.choice(COSTLY), f"Authorization: Bearer {TOKEN}"),
        lambda: request(port, "/healthz", "Origin: http://evil.example"),
        lambda: reconnect(port, 10),
    )
    # Half-open ones, and readers that never read.
    idle = [connected(port) for _ in range(20)]
    slow = [RawClient(port) for _ in range(10)]
    for client in slow:
        client.request(f"Authorization: Bearer {TOKEN}")
        client.send(frame_bytes(Opcode.TEXT, b'{"since":0}'))
    while not until():
        # A server that hangs up on an attacker, or is gone, has done nothing wrong.
        with suppress(OSError, EOFError):
            rng.choice(deeds)()
        time.sleep(PAUSE_S)
    for connection in idle:
        connection.close()
    for client in slow:
        client.socket.close()


def attacker(port: int, seed: int, parent: int) -> None:
    """Attack until the process that is attacked, or this one's parent, is done."""
    with suppress(OSError, EOFError):
        attack(port, lambda: os.getppid() != parent or not _is_open(port), random.Random(seed))


def _is_open(port: int) -> bool:
    with suppress(OSError):
        connected(port).close()
        return True
    return False


def rss_bytes() -> int:
    """Return the memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class WorkClock:
    """Reads the CPU time of lanes and control when an engine is closed."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def installed(self) -> "mock._patch[object]":
        """Return a patch that puts it into every engine."""
        clock, close = self, WorkerEngine.close

        async def closing(engine: WorkerEngine) -> None:
            names = {lane.name for lane in engine.lanes} | {"control"}
            clock.seconds = sum(
                time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
                for thread in threading.enumerate()
                if thread.name in names and thread.ident is not None
            )
            await close(engine)

        return mock.patch.object(WorkerEngine, "close", closing)


def work_seconds(folder: Path, num_attackers: int, num_steps: int) -> float:
    """Run a served job and return the CPU time of its lanes and its control thread."""
    # Loaded late: the process of an attacker needs none of it.
    from esper.karn.monitor import build_monitor
    from esper.simic.training.vectorized import run_job

    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
    layer = {
        "training": {"task": "digits", "n_episodes": 1, "n_envs": 2, "max_epochs": num_steps},
        "run": {
            "telemetry_dir": str(folder),
            "lanes": 2,
            "fsync": "never",
        },
    }
    job, _ = merge_job(("soak", layer), tasks=all_tasks())
    # Bound before the attackers come: they leave when there is nothing to attack.
    monitor = build_monitor(RunOptions(serve=f"{LOOPBACK}:{port}", serve_token=TOKEN), None)
    context = multiprocessing.get_context("spawn")
    attackers = [
        context.Process(target=attacker, args=(port, seed, os.getpid()), daemon=True)
        for seed in range(num_attackers)
    ]
    for process in attackers:
        process.start()
    clock = WorkClock()
    with clock.installed():
        run_job(job, monitors=[monitor])
    for process in attackers:
        process.join(20.0)
        process.kill()
    return clock.seconds


def rows(is_quick: bool) -> Iterator[Row]:
    """Besiege a run: row L9."""
    num_repetitions, num_steps = (1, 20) if is_quick else (7, 60)
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work_seconds(folder, 2, num_steps)
        before = rss_bytes()
        for _ in range(num_repetitions):
            calm = work_seconds(folder, 0, num_steps)
            ratios.append(work_seconds(folder, 2, num_steps) / calm)
        growth = rss_bytes() - before
    yield Row(
        name="L9 CPU time of lanes and control, under attack",
        measured=statistics.median(ratios),
        target=1.05,
        unit="of undisturbed",
        note=f"median of {num_repetitions}; two attackers on the same cores, one attack every 5 ms",
    )
    yield Row(
        name="L9 memory growth under attack",
        measured=growth / 2**20,
        target=32.0,
        unit="MiB",
        note=f"over {2 * num_repetitions} runs of {num_steps} steps",
    )
