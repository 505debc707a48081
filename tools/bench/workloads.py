"""What the training benches run: three jobs of known size, and how one is run."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Final

import msgspec

from esper.leyline.config import Job
from esper.leyline.jobs import merge_job
from esper.leyline.tasks import TASKS, BatchMode, CnnHostSpec, TaskSpec
from esper.runtime.datasets import TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.synthetic import PartSizes, synthetic_images
from esper.runtime.tasks import all_tasks, register_task
from esper.simic.training.run_monitors import Monitor
from esper.simic.training.run_result import TrainingResult
from esper.simic.training.vectorized import run_job

__all__ = [
    "C64",
    "DIGITS",
    "FASHION",
    "FLOOR",
    "GROWTH",
    "SLOTS",
    "WORKLOADS",
    "Workload",
    "install_bench_tasks",
    "job_of",
    "register_bench_tasks",
    "run_workload",
]


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
"""The same host with almost no data, so that orchestration dominates."""
DIGITS: Final = Workload(name="digits", task="digits", num_steps=40)
"""One round of the default job, with half of its envs: ratios are the same, in half the time."""
GROWTH: Final = Workload(name="growth", task="bench_growth", num_steps=4)
"""As much work per env and step as `floor`, whatever the number of envs."""
FASHION: Final = Workload(name="fashion", task="fashion_growth", num_steps=40)
"""Fashion-MNIST at half its size if its data are here, else synthetic images of the same shape."""
SLOTS: Final = Workload(name="slots", task="bench_slots", num_steps=4)
"""A deep host with ten slots."""
WORKLOADS: Final = {
    workload.name: workload for workload in (C64, FLOOR, DIGITS, FASHION, GROWTH, SLOTS)
}

_C64_PARTS: Final = PartSizes(train=2_048, val=512, test=64)
_FLOOR_PARTS: Final = PartSizes(train=8 * 16 * 4, val=4 * 16, test=64)
_HOST: Final = CnnHostSpec(
    in_channels=3, image_size=32, num_classes=10, base_channels=8, num_blocks=3
)


@cache
def _dataset(parts: PartSizes) -> TensorDataset:
    return synthetic_images(_HOST, parts, note="made up for the bench")


def _load(parts: PartSizes, _spec: TaskSpec, _request: DataRequest) -> TensorDataset:
    return _dataset(parts)


def _register(name: str, parts: PartSizes, base: str = "cifar_baseline", **changes: object) -> None:
    spec = msgspec.structs.replace(TASKS[base], name=name, **changes)
    register_task(spec, load=partial(_load, parts))


_SMALL_PASSES: Final = {
    "batch_size": 16,
    "batch_mode": BatchMode.BROADCAST,
    "max_train_batches": 8,
}
_PLUGIN: Final = Path(__file__).parent / "plugin"


def register_bench_tasks() -> None:
    """Register the tasks that only benches have; the entry point of `plugin`."""
    _register("bench_c64", _C64_PARTS, batch_size=64)
    _register("bench_floor", _FLOOR_PARTS, batch_size=16)
    _register("bench_growth", _FLOOR_PARTS, **_SMALL_PASSES)
    _register("bench_slots", _FLOOR_PARTS, "cifar_deep_multichannel", **_SMALL_PASSES)


def install_bench_tasks() -> None:
    """Let worker processes have the tasks too, as those of an installed package.

    Must come before the first question for a task.
    """
    path = [str(Path(__file__).parents[2]), str(_PLUGIN)]
    sys.path += path
    os.environ["PYTHONPATH"] = os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])


def job_of(workload: Workload, folder: Path, *, level: str = "normal", **options: object) -> Job:
    """Return the job of a workload, with its log in this folder.

    Args:
        workload: what is trained.
        folder: where the run's directory is made.
        level: of telemetry.
        options: further settings of `run`, such as another engine than threads.
    """
    if workload.task not in all_tasks():
        register_bench_tasks()
    training = {
        "task": workload.task,
        "n_envs": workload.num_envs,
        "max_epochs": workload.num_steps,
        "n_episodes": workload.num_rounds,
        "telemetry": {"level": level},
        **workload.settings,
    }
    run = {"telemetry_dir": str(folder), "quiet": True, "engine": "threads", **options}
    job, _ = merge_job(("bench", {"training": training, "run": run}), tasks=all_tasks())
    return job


def run_workload(
    workload: Workload,
    *,
    command: str = "ppo",
    level: str = "normal",
    monitors: Sequence[Monitor] = (),
    read: Callable[[Path], None] | None = None,
    **options: object,
) -> TrainingResult:
    """Run a workload to its end; `read` gets the run's directory before it is removed."""
    with _folder() as folder:
        job = job_of(workload, folder, level=level, **options)
        result = run_job(job, command=command, monitors=monitors)
        if read is not None:
            read(result.run_dir)
        return result


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="esper-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
