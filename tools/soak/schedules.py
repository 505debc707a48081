"""The same run with different numbers of lanes and random delays."""

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tools.bench.rows import Row
from tools.soak.fingerprints import fingerprint
from tools.soak.tiny import IMAGES, TEXT, register_tiny_tasks

from esper.leyline.jobs import merge_job
from esper.runtime.tasks import all_tasks
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.vectorized import run_job

QUICK_RUNS, FULL_RUNS = 6, 100
LANES = (1, 2, 4, 8)
NUM_ENVS = 8
MAX_DELAY_S = 0.004
PASSES = ("build", "train_batch", "finish_train", "validate", "apply")


def tiny_run(
    folder: Path, task: str, *, lanes: int, run: dict[str, Any] | None = None, **training: Any
) -> Path:
    """Run a tiny job in this process and return its directory."""
    register_tiny_tasks()
    layer = {
        "training": {"task": task, "n_episodes": 1, "n_envs": NUM_ENVS, **training},
        "run": {"telemetry_dir": str(folder), "lanes": lanes, "fsync": "never", **(run or {})},
    }
    job, _ = merge_job(("soak", layer), tasks=all_tasks())
    return run_job(job).run_dir


def _dawdling(rng: random.Random, call: Any, *arguments: Any) -> Any:
    # Sometimes long, mostly not at all: lanes overtake each other and end in any order.
    if rng.random() < 0.3:
        time.sleep(rng.random() * MAX_DELAY_S)
    return call(*arguments)


@contextmanager
def dawdling_lanes(seed: int) -> Iterator[None]:
    """Delay every piece of env work at random."""
    rng = random.Random(seed)
    originals = {name: getattr(TrainingWork, name) for name in PASSES}
    try:
        for name, original in originals.items():
            setattr(TrainingWork, name, _method(partial(_dawdling, rng, original)))
        yield
    finally:
        for name, original in originals.items():
            setattr(TrainingWork, name, original)


def _method(call: Any) -> Any:
    def method(*arguments: Any) -> Any:
        return call(*arguments)

    return method


def rows(is_quick: bool) -> Iterator[Row]:
    """Run the same seed under many schedules: row L2."""
    target = QUICK_RUNS if is_quick else FULL_RUNS
    num_equal = num_runs = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = {task: fingerprint(tiny_run(folder, task, lanes=1)) for task in (IMAGES, TEXT)}
        for seed in range(target):
            task, lanes = (IMAGES, TEXT)[seed % 2], LANES[seed // 2 % len(LANES)]
            with dawdling_lanes(seed):
                found = fingerprint(tiny_run(folder, task, lanes=lanes))
            num_equal += found == plain[task]
            num_runs += 1
    yield Row(
        name="L2 schedules with the same hash",
        measured=num_equal,
        target=num_runs,
        unit="runs",
        is_at_least=True,
        note="lanes 1, 2, 4, 8; random delays; augmentation or dropout on",
    )
