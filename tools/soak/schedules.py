"""The same run with different numbers of lanes and random delays."""

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.builders.fingerprints import fingerprint
from tests.builders.tiny_runs import short_run
from tests.builders.tiny_tasks import TINY, TINY_LM
from tools.bench.rows import Row

from esper.simic.training.env_work import TrainingWork

QUICK_RUNS, FULL_RUNS = 6, 100
LANES = (1, 2, 4, 8)
NUM_ENVS = 8
MAX_DELAY_S = 0.004
PASSES = ("build", "train_batch", "finish_train", "validate", "apply")


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
        plain = {
            task: fingerprint(short_run(folder, task, lanes=1, n_envs=NUM_ENVS))
            for task in (TINY, TINY_LM)
        }
        for seed in range(target):
            task, lanes = (TINY, TINY_LM)[seed % 2], LANES[seed // 2 % len(LANES)]
            with dawdling_lanes(seed):
                found = fingerprint(short_run(folder, task, lanes=lanes, n_envs=NUM_ENVS))
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
