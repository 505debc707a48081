"""Runs in processes of their own: the same runs, and nothing left of a process that is ended."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.simic.training.runs import tiny_job

from esper.leyline.comparison import ArmRun, ComparisonReport, RunOrder
from esper.leyline.config import Job
from esper.leyline.errors import InterruptedRunError, RunFailedError, UsageError
from esper.simic.evaluation.arms import parse_arms, run_arm
from esper.simic.evaluation.compare import compare
from esper.simic.evaluation.run_process import RunProcess, run_processes
from esper.simic.training.machine import one_thread_per_worker
from esper.tolaria.stopping import StopFlag

ARMS = ("wait", "random")


def short_job(tmp_path: Path, **settings: Any) -> Job:
    """Return a job of a task that every process knows."""
    return tiny_job(tmp_path, **{"task": "digits", "n_envs": 1, "max_epochs": 2, **settings})


def order_for(job: Job, arm: str, seed: int = 5) -> RunOrder:
    return RunOrder(job=job, arms=ARMS, arm=arm, stratum=0, seed=seed, is_greedy=False)


@pytest.fixture
def process() -> Iterator[RunProcess]:
    with run_processes(1) as (only,):
        yield only


def test_a_run_of_another_process_is_the_one_of_this(process: RunProcess, tmp_path: Path) -> None:
    job = short_job(tmp_path)
    for arm in parse_arms(ARMS):
        with one_thread_per_worker():
            here = run_arm(job, arm, stratum=0, seed=5, stop=StopFlag())
        there = process.make(order_for(job, arm.name), StopFlag())
        assert timeless(there) == timeless(here)


def timeless(run: ArmRun) -> ArmRun:
    return msgspec.structs.replace(run, wall_s=None)


def test_what_a_run_refuses_is_refused_here(process: RunProcess, tmp_path: Path) -> None:
    arms = ("ppo:builtin:digits_growth", "wait")
    order = order_for(short_job(tmp_path, slots=("r0c0",)), arms[0])
    with pytest.raises(UsageError, match="--slots"):
        process.make(msgspec.structs.replace(order, arms=arms), StopFlag())


def test_a_process_that_dies_is_told_with_the_way_on(process: RunProcess, tmp_path: Path) -> None:
    process.make(order_for(short_job(tmp_path), "wait"), StopFlag())
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(RunFailedError, match=r"random under seed 7 ended with code -9; give"):
        process.make(order_for(short_job(tmp_path), "random", seed=7), StopFlag())


def test_a_stop_ends_the_wait_and_the_process_its_run(tmp_path: Path) -> None:
    stop, endless = StopFlag(), short_job(tmp_path, max_epochs=10_000)
    asker = threading.Timer(1.0, stop.set, args=("enough",))
    asker.start()

    with run_processes(1) as (process,), pytest.raises(InterruptedRunError, match="enough"):
        process.make(order_for(endless, "wait"), stop)

    assert process.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    asker.join()


def test_a_comparison_in_processes_is_the_comparison(tmp_path: Path) -> None:
    quick = {"auto_forward": [1, 2, 3], "min_training_steps": 1}
    job = short_job(tmp_path, max_epochs=5, lifecycle=quick)
    arms = parse_arms(["ppo:builtin:digits_growth", "static-final", "random"])

    reports = [
        compare(job, arms, seeds=(5, 6), directory=tmp_path / name, in_processes=name == "apart")
        for name in ("apart", "together")
    ]

    assert without_times(reports[0]) == without_times(reports[1])
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
