"""A run on two Ray nodes, each in a network of its own, whose link is cut."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.simic.training.runs import operational_events
from tests.simic.training.worker_runs import run_facts

WAIT_S = 200.0
CUT_S = 10.0
HEAD, OTHER = "10.77.0.1", "10.77.0.2"
PORT = 6399
SHORT = ["--envs", "2", "--rounds", "3", "--episode-length", "5", "--lstm-hidden-dim", "8"]
SMALL = ["--object-store-memory", str(80 * 2**20), "--disable-usage-stats", "--block"]
TRAIN = [sys.executable, "-m", "esper.scripts.train", "ppo", "--task", "digits", *SHORT, "--quiet"]
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start"]

pytestmark = pytest.mark.timeout(500)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=WAIT_S)


def wait_for(is_done: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_done():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.05)


class TwoNodes:
    """A head with two CPUs and another node with one, connected by one link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tag = f"esper{os.getpid()}"
        self.near, self.far = f"{tag}a", f"{tag}b"
        self.links = (f"ea{os.getpid()}", f"eb{os.getpid()}")
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ADDRESS": f"{HEAD}:{PORT}",
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        near_link, far_link = self.links
        ip("link", "add", near_link, "type", "veth", "peer", "name", far_link)
        for space, link, address in ((self.near, near_link, HEAD), (self.far, far_link, OTHER)):
            ip("link", "set", link, "netns", space)
            ip("-n", space, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", link, "up")
        head = ["--head", "--port", str(PORT), "--include-dashboard", "false", "--num-cpus", "2"]
        place = ["--temp-dir", str(self.folder / "ray")]
        self.run(self.near, [*RAY, *head, *place, *SMALL, "--node-ip-address", HEAD])
        wait_for(lambda: "ray start" in self.output(), "the start of the head")
        join = ["--address", f"{HEAD}:{PORT}", "--num-cpus", "1"]
        self.run(self.far, [*RAY, *join, *SMALL, "--node-ip-address", OTHER])
        wait_for(lambda: self.output().count("Ray runtime started") == 2, "the start of the other")

    def run(self, space: str, command: list[str]) -> "subprocess.Popen[bytes]":
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", space, *command],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def set_link(self, state: str) -> None:
        ip("-n", self.far, "link", "set", self.links[1], state)

    def train(self, runs: Path, *flags: str) -> "subprocess.Popen[bytes]":
        """Start a run on both nodes; return it when its first step is over."""
        engine = ["--engine", "ray", "--workers", "2", "--telemetry-dir", str(runs)]
        run = self.run(self.near, [*TRAIN, *engine, *flags])
        logs = runs.glob
        wait_for(
            lambda: (
                run.poll() is not None
                or any(b"EPOCH_COMPLETED" in path.read_bytes() for path in logs("*/events.jsonl"))
            ),
            "the first step",
        )
        assert run.poll() is None, self.output()
        return run

    def close(self) -> None:
        for process in reversed(self.started):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for space in (self.near, self.far):
            found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True)
            for pid in found.stdout.split():  # of our own namespaces only
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
        for process in self.started:
            process.wait(WAIT_S)


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    pytest.importorskip("ray")
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed")
    # Not pytest's own folder: the paths of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(prefix="e-", dir="/tmp") as name:
        nodes = TwoNodes(Path(name))
        try:
            ip("netns", "add", nodes.near)
            ip("netns", "add", nodes.far)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
        try:
            nodes.start()
            yield nodes
        finally:
            nodes.close()


@pytest.fixture(scope="module")
def on_threads(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[bytes], str, bytes]:
    runs = tmp_path_factory.mktemp("threads")
    subprocess.run([*TRAIN, "--engine", "threads", "--telemetry-dir", str(runs)], check=True)
    return run_facts(next(runs.iterdir()))


def test_a_link_that_is_cut_for_ten_seconds_only_delays_a_run(
    nodes: TwoNodes, on_threads: tuple[list[bytes], str, bytes], tmp_path: Path
) -> None:
    run = nodes.train(tmp_path)
    nodes.set_link("down")
    with pytest.raises(subprocess.TimeoutExpired):  # it waits for its other worker
        run.wait(CUT_S)
    nodes.set_link("up")

    assert run.wait(WAIT_S) == 0, nodes.output()
    (run_dir,) = tmp_path.iterdir()
    assert run_facts(run_dir) == on_threads
    assert operational_events(run_dir) == []


def test_a_worker_behind_a_link_that_stays_cut_is_replaced_on_another_node(
    nodes: TwoNodes, on_threads: tuple[list[bytes], str, bytes], tmp_path: Path
) -> None:
    run = nodes.train(tmp_path, "--lane-deadline", "10")
    nodes.set_link("down")

    assert run.wait(WAIT_S) == 0, nodes.output()
    (run_dir,) = tmp_path.iterdir()
    assert run_facts(run_dir) == on_threads
    events = operational_events(run_dir)
    assert events
    # On a machine that stands still for as long, the other worker is replaced, too.
    for event in events:
        assert event["event_type"] == "WORKER_RESTARTED"
        assert event["data"]["reason"].startswith("no heartbeat for ")
