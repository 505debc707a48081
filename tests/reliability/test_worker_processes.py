"""Runs on processes from outside: real commands, real signals, and what is left of them."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.builders.fingerprints import latest_checkpoint
from tests.simic.training.worker_runs import run_facts
from tools.soak.children import only_run

from esper.leyline.errors import ExitCode
from esper.leyline.telemetry import EventType
from esper.nissa.analysis.validation import validate_run
from esper.scripts.train import main
from esper.simic.training.checkpoints.resuming import load_run

pytestmark = pytest.mark.timeout(400)

WAIT_S = 120.0
"""Generous: the machine may be busy."""
SMALL = ("--envs", "4", "--episode-length", "5", "--batch-size", "250", "--lstm-hidden-dim", "8")
ON_PROCESSES = ("--engine", "processes", "--workers", "2")


def flags_of(telemetry_dir: Path, rounds: int) -> list[str]:
    where = ["--telemetry-dir", str(telemetry_dir), "--rounds", str(rounds)]
    return ["--task", "digits", *SMALL, *where]


def command(telemetry_dir: Path, rounds: int, *more: str) -> list[str]:
    module = [sys.executable, "-m", "esper.scripts.train", "ppo"]
    return [*module, *flags_of(telemetry_dir, rounds), *more]


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def parents() -> dict[int, int]:
    """Return the parent of every process that runs."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(path.parent.name)] = int(parent)
    return found


def descendants(pid: int) -> set[int]:
    above, found = parents(), {pid}
    while more := {child for child, parent in above.items() if parent in found} - found:
        found |= more
    return found - {pid}


def workers_of(pid: int) -> list[int]:
    """Return the workers of a driver: the children of its fork server."""
    above = parents()
    return sorted(child for child, parent in above.items() if above.get(parent) == pid)


def wait_until(condition: object, *, process: subprocess.Popen[str] | None = None) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline_s, "waited in vain"
        assert process is None or process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


def num_lines(telemetry_dir: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in telemetry_dir.glob("*/events.jsonl"))


@pytest.mark.parametrize(
    ("number", "when"), [(signal.SIGINT, "start"), (signal.SIGTERM, "log"), (signal.SIGINT, "log")]
)
def test_a_signal_at_any_moment_ends_the_run_and_all_its_processes(
    number: signal.Signals, when: str, tmp_path: Path
) -> None:
    lines = random.Random(number).randrange(1, 400)
    with started(*command(tmp_path, 500, *ON_PROCESSES)) as driver:
        if when == "start":
            wait_until(lambda: descendants(driver.pid), process=driver)
        else:
            wait_until(lambda: num_lines(tmp_path) >= lines, process=driver)
        family = descendants(driver.pid)
        driver.send_signal(number)
        output, _ = driver.communicate(timeout=WAIT_S)

    assert driver.returncode == ExitCode.INTERRUPTED, output
    assert "Traceback" not in output
    wait_until(lambda: not family & parents().keys())
    run_dir = only_run(tmp_path)
    if run_dir is not None:
        assert validate_run(run_dir).is_valid
        checkpoint = latest_checkpoint(run_dir)
        assert checkpoint is not None
        load_run(checkpoint)


def test_a_suspended_worker_is_replaced_and_the_result_is_the_same(tmp_path: Path) -> None:
    # In this process: what is compared does not depend on it.
    assert main(["ppo", *flags_of(tmp_path / "calm", 2), "--engine", "threads", "--quiet"]) == 0

    flags = (*ON_PROCESSES, "--lane-deadline", "8")
    with started(*command(tmp_path / "hung", 2, *flags)) as driver:
        wait_until(lambda: num_lines(tmp_path / "hung") > 20, process=driver)
        os.kill(workers_of(driver.pid)[0], signal.SIGSTOP)
        output, _ = driver.communicate(timeout=WAIT_S)

    assert driver.returncode == ExitCode.OK, output
    run_dir = only_run(tmp_path / "hung")
    expected = only_run(tmp_path / "calm")
    assert run_dir is not None
    assert expected is not None
    assert run_facts(run_dir) == run_facts(expected)
    events = map(json.loads, (run_dir / "operational.jsonl").read_text().splitlines())
    restarts = [event for event in events if event["event_type"] == EventType.WORKER_RESTARTED]
    assert len(restarts) == 1
    assert restarts[0]["data"]["reason"].startswith("no heartbeat for")


def test_workers_end_when_their_driver_is_killed_even_those_that_are_suspended(
    tmp_path: Path,
) -> None:
    with started(*command(tmp_path, 500, *ON_PROCESSES)) as driver:
        wait_until(lambda: num_lines(tmp_path) > 5, process=driver)
        family = descendants(driver.pid)
        assert len(family) == 3  # the fork server and two workers
        os.kill(workers_of(driver.pid)[0], signal.SIGSTOP)
        driver.kill()
        driver.wait()

    wait_until(lambda: not family & parents().keys())


def private_bytes(pid: int) -> int:
    """Return the memory that a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def test_a_worker_takes_little_memory_of_its_own_and_no_more_with_every_round(
    tmp_path: Path,
) -> None:
    with started(*command(tmp_path, 500, *ON_PROCESSES, "--episode-length", "2")) as driver:
        grown = []
        for num_rounds in (3, 12):
            wait_until(lambda: num_rounds_of(tmp_path) >= num_rounds, process=driver)  # noqa: B023
            grown.append(max(map(private_bytes, workers_of(driver.pid))))
    # A process that imports torch for itself has more than 150 MiB; forks share them.
    assert grown[0] < 120 * 2**20
    assert grown[1] < grown[0] + 8 * 2**20


def num_rounds_of(telemetry_dir: Path) -> int:
    logs = telemetry_dir.glob("*/events.jsonl")
    return sum(path.read_bytes().count(b'"PPO_UPDATE_COMPLETED"') for path in logs)
