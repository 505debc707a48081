"""Which workers a job gets, and why."""

from pathlib import Path
from typing import Any

import pytest
from tests.builders.tiny_runs import tiny_job
from tests.simic.training.worker_runs import digits_job

from esper.leyline.config import EngineKind, Job
from esper.leyline.errors import ConfigError
from esper.simic.training.assembly import engines
from esper.simic.training.assembly.engines import EngineChoice, choose_engine
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.worker_setup import prepare_worker
from esper.tolaria.stopping import StopFlag

LONG = {"n_episodes": 100}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.os, "cpu_count", lambda: 4)


def choice_for(job: Job, **parts: Any) -> EngineChoice:
    return choose_engine(prepare_worker(job, StopFlag(), parts=RunParts(**parts)))


def test_a_long_job_with_small_hosts_gets_a_process_per_core(tmp_path: Path) -> None:
    choice = choice_for(digits_job(tmp_path, training={**LONG, "n_envs": 6}))
    assert (choice.kind, choice.workers, choice.lanes) == (EngineKind.PROCESSES, 4, 1)
    assert str(choice) == "processes, 4 workers (small hosts share one interpreter badly)"


def test_there_are_no_more_workers_and_lanes_than_envs(tmp_path: Path) -> None:
    few = choice_for(digits_job(tmp_path, training={**LONG, "n_envs": 3}, workers=9, lanes=9))
    assert (few.workers, few.lanes) == (3, 1)
    two = choice_for(digits_job(tmp_path, training={**LONG, "n_envs": 7}, workers=2, lanes=9))
    assert (two.workers, two.lanes) == (2, 4)


@pytest.mark.parametrize(
    ("training", "run", "reason"),
    [
        ({"n_episodes": 2, "max_epochs": 4}, {}, "32 env-steps are too few"),
        ({**LONG, "n_envs": 1}, {}, "one env or one core"),
        (LONG, {"profiler": {"torch": True}}, "the torch profiler traces this process only"),
        (LONG, {"engine": "threads"}, "as requested"),
    ],
)
def test_threads_are_chosen_for_a_reason(
    training: dict[str, Any], run: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    choice = choice_for(digits_job(tmp_path, training=training, **run))
    assert choice.kind is EngineKind.THREADS
    assert reason in choice.reason
    assert reason in str(choice)


def test_large_hosts_keep_threads_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MAX_HOST_PARAMS", 10)
    choice = choice_for(digits_job(tmp_path, training=LONG))
    assert choice.kind is EngineKind.THREADS
    assert "parameters keep threads busy" in choice.reason


def test_what_cannot_reach_another_process_stays_on_threads_unless_asked_otherwise(
    tmp_path: Path,
) -> None:
    job = tiny_job(tmp_path, n_episodes=100)
    assert "registered in this process only" in choice_for(job).reason
    with pytest.raises(ConfigError, match="use --engine threads"):
        choice_for(tiny_job(tmp_path, run={"engine": "processes"}))
    replaced = choice_for(digits_job(tmp_path, training=LONG), autocast=lambda *_: None)
    assert "autocast was replaced" in replaced.reason
