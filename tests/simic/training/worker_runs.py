"""Runs on processes, and what may be compared of them."""

from pathlib import Path
from typing import Any

import pytest
from tests.simic.training.runs import last_checkpoint, lines_of, weights_digest

from esper.leyline.config import Job
from esper.leyline.jobs import merge_job
from esper.runtime.tasks import all_tasks
from esper.simic.training.vectorized import run_job
from esper.tolaria.process_port import ProcessPort

SMALL = {
    "n_envs": 4,
    "n_episodes": 2,
    "max_epochs": 4,
    "lstm_hidden_dim": 8,
    "feature_dim": 8,
    "batch_size_per_env": 250,
}
"""A job on real digits that takes a second or two."""


def digits_job(telemetry_dir: Path, *, training: dict[str, Any] | None = None, **run: Any) -> Job:
    layer = {
        "training": {"task": "digits", **SMALL, **(training or {})},
        "run": {"telemetry_dir": str(telemetry_dir), "fsync": "never", **run},
    }
    return merge_job(("test", layer), tasks=all_tasks())[0]


def note_worker_pids(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the process id of each worker process will be added."""
    pids: list[int] = []
    start = ProcessPort.__init__

    def noted(port: ProcessPort, *arguments: Any) -> None:
        start(port, *arguments)
        pids.append(port.pid)

    patch.setattr(ProcessPort, "__init__", noted)
    return pids


def run_facts(run_dir: Path) -> tuple[list[bytes], str, bytes]:
    """Return everything that must not depend on where envs live."""
    grown = (run_dir / "grown.pt").read_bytes()
    return lines_of(run_dir), weights_digest(last_checkpoint(run_dir)), grown


def facts_of(job: Job, **options: Any) -> tuple[list[bytes], str, bytes]:
    return run_facts(run_job(job, **options).run_dir)
