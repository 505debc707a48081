"""What the training benches run: three jobs of known size, and how one is run."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Final

import msgspec

from esper.leyline.config import Job
from esper.leyline.jobs import merge_job
from esper.leyline.tasks import TASKS, TaskSpec
from esper.runtime.datasets import TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.synthetic import PartSizes, synthetic_images
from esper.runtime.tasks import all_tasks, register_task
from esper.simic.training.vectorized import Companion, TrainingResult, run_job

__all__ = ["C64", "DIGITS", "FLOOR", "WORKLOADS", "Workload", "job_of", "run_workload"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A job to measure: what is trained, and for how long."""

    name: str
    task: str
    num_envs: int = 4
    num_steps: int
    num_rounds: int = 1
    settings: dict[str, object] = field(default_factory=dict)
    """Further training settings."""

    @property
    def num_env_steps(self) -> int:
        """Count the steps of all envs."""
        return self.num_rounds * self.num_envs * self.num_steps


C64: Final = Workload(name="c64", task="bench_c64", num_steps=10)
"""CIFAR-shaped: 512 samples of 2,048 per env and step, 512 for validation."""
FLOOR: Final = Workload(name="floor", task="bench_floor", num_steps=50)
"""The same host on next to nothing: what is left is orchestration."""
DIGITS: Final = Workload(name="digits", task="digits", num_steps=40)
"""One round of the default job."""
WORKLOADS: Final = {workload.name: workload for workload in (C64, FLOOR, DIGITS)}

_PARTS: Final = {
    "bench_c64": PartSizes(train=2_048, val=512, test=64),
    "bench_floor": PartSizes(train=8 * 16 * 4, val=4 * 16, test=64),
}
_BATCH_SIZES: Final = {"bench_c64": 64, "bench_floor": 16}


@cache
def _dataset(task: str) -> TensorDataset:
    host = TASKS["cifar_baseline"].host
    return synthetic_images(host, _PARTS[task], note="made up for the bench")  # type: ignore[arg-type]


def _load(task: str, _spec: TaskSpec, _request: DataRequest) -> TensorDataset:
    return _dataset(task)


for _task, _batch_size in _BATCH_SIZES.items():
    register_task(
        msgspec.structs.replace(TASKS["cifar_baseline"], name=_task, batch_size=_batch_size),
        load=partial(_load, _task),
    )


def job_of(
    workload: Workload, folder: Path, *, lanes: int | None = None, level: str = "normal"
) -> Job:
    """Return the job of a workload, with its log in this folder."""
    training = {
        "task": workload.task,
        "n_envs": workload.num_envs,
        "max_epochs": workload.num_steps,
        "n_episodes": workload.num_rounds,
        "telemetry": {"level": level},
        **workload.settings,
    }
    run = {"telemetry_dir": str(folder), "lanes": lanes, "quiet": True}
    job, _ = merge_job(("bench", {"training": training, "run": run}), tasks=all_tasks())
    return job


def run_workload(
    workload: Workload,
    *,
    command: str = "ppo",
    lanes: int | None = None,
    level: str = "normal",
    companions: Sequence[Companion] = (),
) -> TrainingResult:
    """Run a workload to its end; nothing stays on the disk."""
    with _folder() as folder:
        job = job_of(workload, folder, lanes=lanes, level=level)
        return run_job(job, command=command, companions=companions)


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="esper-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
