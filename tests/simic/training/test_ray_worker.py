"""Runs whose envs live in Ray actors: the same bits, lost actors replaced, nothing left behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.simic.training.runs import last_checkpoint, operational_events
from tests.simic.training.worker_runs import digits_job, facts_of, run_facts

from esper.leyline.errors import ConfigError, ExitCode, MissingExtraError
from esper.leyline.telemetry import EventType
from esper.leyline.workers import Command, Train, WorkerIdentity
from esper.simic.training.assembly import engines
from esper.simic.training.ray_worker import RAY_CLUSTER
from esper.simic.training.vectorized import run_job
from esper.tolaria.ray_port import RayPort

# Ray leaves sockets and files to the collector, and warns about its own future.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(400)]

Facts = tuple[list[bytes], str, bytes]
WAIT_S = 150.0


@pytest.fixture(scope="module", autouse=True)
def _local_cluster() -> Iterator[None]:
    pytest.importorskip("ray")
    assert "RAY_ADDRESS" not in os.environ
    yield
    RAY_CLUSTER.close()


@pytest.fixture(scope="module")
def on_threads(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return facts_of(digits_job(tmp_path_factory.mktemp("threads"), engine="threads"))


class Killer:
    """Kills actors with SIGKILL when they are sent a command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_fatal: Callable[[int, Command], bool]):
        self.num_killed = 0
        submit = RayPort.submit

        def killing(port: RayPort, command: Command) -> Any:
            future = submit(port, command)
            if is_fatal(self.num_killed, command):
                self.num_killed += 1
                os.kill(port.place.result(WAIT_S)[1], signal.SIGKILL)
            return future

        monkeypatch.setattr(RayPort, "submit", killing)


def test_ray_actors_give_the_same_events_weights_and_network_as_threads(
    on_threads: Facts, tmp_path: Path
) -> None:
    assert facts_of(digits_job(tmp_path, engine="ray", workers=2)) == on_threads


def test_actors_killed_in_mid_round_and_while_they_repeat_it_leave_no_trace_in_the_result(
    on_threads: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fatal = {0: Train(step=2), 1: Train(step=1)}
    killer = Killer(monkeypatch, lambda killed, command: fatal.get(killed) == command)

    run_dir = run_job(digits_job(tmp_path, engine="ray", workers=2)).run_dir

    assert killer.num_killed == 2
    assert run_facts(run_dir) == on_threads
    (event,) = operational_events(run_dir)
    assert event["event_type"] == EventType.WORKER_RESTARTED
    assert event["data"]["reason"] == "its worker process has died"


def test_actors_that_would_compute_other_results_are_refused_with_both_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = engines.worker_identity

    def other(setup: Any) -> WorkerIdentity:
        return msgspec.structs.replace(actual(setup), machine_kind="torch 9.9")

    monkeypatch.setattr(engines, "worker_identity", other)
    with pytest.raises(
        ConfigError, match=r"its machine kind is 'torch 2.* the driver's is 'torch 9.9'"
    ):
        run_job(digits_job(tmp_path, engine="ray", workers=1))
    assert list(tmp_path.iterdir()) == []


def test_without_ray_one_sentence_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"'esper-grow\[ray\]', or use --engine"):
        run_job(digits_job(tmp_path, engine="ray"))
    assert list(tmp_path.iterdir()) == []


LISTENING = "0A"
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
"""In the notation of /proc/net: 127.0.0.1, ::1 and ::ffff:127.0.0.1."""


def listening_sockets() -> dict[str, str]:
    """Return the address and port of each listening TCP socket by its inode."""
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    return {line[9]: line[1] for line in lines if line[3] == LISTENING}


def inodes_of(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    found = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    return found


def test_a_cluster_of_our_own_listens_on_loopback_only() -> None:
    RAY_CLUSTER.connect()
    actor = RAY_CLUSTER.start_worker(lanes=1)
    pids = {os.getpid(), *processes_with(os.environ["RAY_AUTH_TOKEN"])}
    pids.add(actor.place.remote().future().result(WAIT_S)[1])
    owned = set().union(*map(inodes_of, pids))
    addresses = {place for inode, place in listening_sockets().items() if inode in owned}
    RAY_CLUSTER.end_worker(actor)

    assert addresses
    assert {place for place in addresses if place.split(":")[0] not in LOOPBACK} == set()


@pytest.fixture
def home() -> Iterator[Path]:
    # Not pytest's own: the paths of Ray's sockets, which are below it, must be short.
    with tempfile.TemporaryDirectory(prefix="e-", dir="/tmp") as name:
        yield Path(name)


def processes_with(text: str) -> list[int]:
    """Return the processes that have a text in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and text.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def has_begun(log: Path) -> bool:
    return b"EPOCH_COMPLETED" in log.read_bytes()


def wait_for(is_done: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_done():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "when"),
    [
        (signal.SIGTERM, "training"),  # the one that Ray has a handler of its own for
        (signal.SIGINT, "starting"),
        (signal.SIGTERM, "connecting"),
    ],
)
def test_a_signal_ends_a_run_on_ray_and_leaves_neither_processes_nor_files(
    number: signal.Signals, when: str, home: Path
) -> None:
    runs = home / "runs"
    flags = ["--task", "digits", "--engine", "ray", "--workers", "2", "--rounds", "100"]
    command = [sys.executable, "-m", "esper.scripts.train", "ppo", *flags, "--quiet"]
    environment = {**os.environ, "TMPDIR": str(home), "HOME": str(home)}
    environment.pop("RAY_AUTH_TOKEN", None)  # of the other tests' cluster
    with (
        (home / "output").open("wb") as output,
        subprocess.Popen(
            [*command, "--telemetry-dir", str(runs)],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as run,
    ):
        try:
            if when == "training":
                wait_for(lambda: any(map(has_begun, runs.glob("*/events.jsonl"))))
            elif when == "starting":
                wait_for(lambda: any(home.glob("esper-ray-*/session_*/sockets/*")))
            else:
                wait_for(lambda: any(home.glob("esper-ray-*/session_*")))
            run.send_signal(number)
            code = run.wait(WAIT_S)
        finally:
            run.kill()
    assert code == ExitCode.INTERRUPTED, (home / "output").read_text()
    assert (home / "output").read_text() == f"esper-train: received {number.name}\n"
    if when == "training":
        (run_dir,) = runs.iterdir()
        assert last_checkpoint(run_dir)
    wait_for(lambda: not processes_with(f"TMPDIR={home}"))
    assert {path.name for path in home.iterdir()} <= {"output", "runs"}
