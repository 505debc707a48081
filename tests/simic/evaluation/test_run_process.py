"""Runs in processes of their own: the same runs, and nothing left of a process that is ended."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders.tiny_runs import tiny_job

from esper.leyline.comparison import ArmRun, ComparisonReport, RunRequest
from esper.leyline.config import Job
from esper.leyline.errors import InterruptedRunError, RunFailedError, UsageError
from esper.simic.evaluation import compare as comparing
from esper.simic.evaluation.arm_run import run_arm
from esper.simic.evaluation.arms import Arm, parse_arms
from esper.simic.evaluation.compare import compare
from esper.simic.evaluation.run_process import RunProcess, run_processes
from esper.simic.training.assembly.machine import one_thread_per_worker
from esper.tolaria.stopping import StopFlag

ARMS = ("wait", "random")
POLICY = "ppo:builtin:digits_growth"


def short_job(tmp_path: Path, **settings: Any) -> Job:
    """Return a job of a task that every process knows."""
    return tiny_job(tmp_path, **{"task": "digits", "n_envs": 1, "max_epochs": 2, **settings})


def request_for(job: Job, arm: str, seed: int = 5) -> RunRequest:
    arms = ARMS if arm in ARMS else (arm, *ARMS)
    (chosen,) = (parsed for parsed in parse_arms(arms) if parsed.name == arm)
    return RunRequest(
        job=job,
        arms=arms,
        arm=arm,
        stratum=0,
        digest=chosen.digest(0),
        seed=seed,
        is_greedy=False,
    )


@pytest.fixture
def process() -> Iterator[RunProcess]:
    with run_processes(1) as (only,):
        yield only


def test_a_run_of_another_process_is_the_one_of_this(process: RunProcess, tmp_path: Path) -> None:
    job = short_job(tmp_path)
    for arm in parse_arms(ARMS):
        with one_thread_per_worker():
            here = run_arm(job, arm, stratum=0, seed=5, stop=StopFlag())
        there = process.execute(request_for(job, arm.name), StopFlag())
        assert timeless(there) == timeless(here)


def timeless(run: ArmRun) -> ArmRun:
    return msgspec.structs.replace(run, wall_s=None)


def test_what_a_run_refuses_is_refused_here(process: RunProcess, tmp_path: Path) -> None:
    request = request_for(short_job(tmp_path, slots=("r0c0",)), POLICY)
    with pytest.raises(UsageError, match="--slots"):
        process.execute(request, StopFlag())


def test_a_policy_that_is_another_by_now_is_refused(process: RunProcess, tmp_path: Path) -> None:
    request = request_for(short_job(tmp_path), POLICY)
    with pytest.raises(UsageError, match="has changed since the comparison began"):
        process.execute(msgspec.structs.replace(request, digest="of another"), StopFlag())


def test_a_process_that_dies_is_named_with_the_way_on(process: RunProcess, tmp_path: Path) -> None:
    process.execute(request_for(short_job(tmp_path), "wait"), StopFlag())
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)

    message = r"random under seed 7 ended with code -9; .* to continue"
    with pytest.raises(RunFailedError, match=message):
        process.execute(request_for(short_job(tmp_path), "random", seed=7), StopFlag())

    # The next request gets a new process.
    assert process.execute(request_for(short_job(tmp_path), "wait"), StopFlag()).arm == "wait"


def test_a_stop_ends_the_wait_and_the_process_its_run(tmp_path: Path) -> None:
    stop, endless = StopFlag(), short_job(tmp_path, max_epochs=10_000)
    asker = threading.Timer(0.5, stop.set, args=("enough",))

    with run_processes(1) as (process,):
        # It is up now: the endless run begins at once.
        process.execute(request_for(short_job(tmp_path), "wait"), stop)
        pid = process.pid
        asker.start()
        with pytest.raises(InterruptedRunError, match="enough"):
            process.execute(request_for(endless, "wait"), stop)

    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    request = request_for(short_job(tmp_path, max_epochs=10_000), "wait")
    (tmp_path / "request.json").write_bytes(msgspec.json.encode(request))
    command = [sys.executable, "-c", _REQUESTING, str(tmp_path / "request.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)

    deadline = time.monotonic() + 60
    while _is_there(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_there(pid)


def _is_there(pid: int) -> bool:
    """Return whether a process is running; a zombie has ended."""
    listed = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listed.stdout.strip()[:1] not in ("", "Z")


_REQUESTING = """
import sys, threading
from pathlib import Path
import msgspec
from esper.leyline.comparison import RunRequest
from esper.simic.evaluation.run_process import RunProcess
from esper.tolaria.stopping import StopFlag

request = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=RunRequest)
process = RunProcess()
threading.Thread(target=process.execute, args=(request, StopFlag())).start()
while process.pid is None:
    pass
print(process.pid, flush=True)
"""
"""Requests an endless run and prints the id of its process."""


def test_a_comparison_in_processes_is_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_here: list[int] = []

    def noted(job: Job, arm: Arm, *, seed: int, **options: Any) -> ArmRun:
        made_here.append(seed)
        return run_arm(job, arm, seed=seed, **options)

    monkeypatch.setattr(comparing, "run_arm", noted)
    quick = {"auto_forward": [1, 2, 3], "min_training_steps": 1}
    job = short_job(tmp_path, max_epochs=5, lifecycle=quick)
    arms = parse_arms([POLICY, "static-final", "random"])

    reports = [
        compare(job, arms, seeds=(5, 6), directory=tmp_path / name, in_processes=name == "apart")
        for name in ("apart", "together")
    ]

    assert without_times(reports[0]) == without_times(reports[1])
    # Of the first comparison, only the runs that are timed.
    assert made_here == [5] * 3 + [5] * 3 + [6] * 3
    kept = [
        sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("apart", "together")
    ]
    assert kept[0] == kept[1]


def without_times(report: ComparisonReport) -> ComparisonReport:
    arms = tuple(msgspec.structs.replace(arm, wall_s=None) for arm in report.arms)
    return msgspec.structs.replace(report, arms=arms)


def test_a_task_that_only_this_process_knows_is_run_by_it(tmp_path: Path) -> None:
    report = compare(
        tiny_job(tmp_path),
        parse_arms(ARMS),
        seeds=(5, 6),
        directory=tmp_path / "runs",
        in_processes=True,
    )
    assert report.seeds == (5, 6)
