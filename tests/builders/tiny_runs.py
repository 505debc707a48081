"""Runs of tiny tasks in this process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.builders.tiny_tasks import TINY, register_tiny_tasks

from esper.leyline.config import Job
from esper.leyline.jobs import merge_job
from esper.runtime.tasks import all_tasks
from esper.simic.training.run_result import TrainingResult
from esper.simic.training.vectorized import run_job

Settings = Mapping[str, Any]

SETTINGS: Settings = {"n_episodes": 2, "max_epochs": 4, "batch_size_per_env": 12}
"""Four batches of 12 samples in each of the four steps of a round."""


def tiny_job(
    telemetry_dir: Path, *, run: Settings | None = None, task: str = TINY, **training: Any
) -> Job:
    """Return a small job on a tiny task."""
    register_tiny_tasks()
    layer = {
        "training": {**SETTINGS, "task": task, **training},
        "run": {"telemetry_dir": str(telemetry_dir), "fsync": "never", **(run or {})},
    }
    job, _ = merge_job(("test", layer), tasks=all_tasks())
    return job


def tiny_run(telemetry_dir: Path, *, command: str = "ppo", **settings: Any) -> TrainingResult:
    """Run a small job to its end."""
    return run_job(tiny_job(telemetry_dir, **settings), command=command)


def short_run(telemetry_dir: Path, task: str = TINY, *, lanes: int = 1, **settings: Any) -> Path:
    """Run one round, unless told otherwise, of two envs and return the run's directory."""
    run = {"lanes": lanes, **settings.pop("run", {})}
    facts = {"n_episodes": 1, "n_envs": 2, "max_epochs": 3, "batch_size_per_env": None, **settings}
    return tiny_run(telemetry_dir, task=task, run=run, **facts).run_dir
