"""Threads that take their time in any order change no bit."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.simic.training.runs import (
    TINY,
    TINY_LM,
    last_checkpoint,
    lines_of,
    tiny_run,
    weights_digest,
)

from esper.simic.training import vectorized
from esper.simic.training.env_work import TrainingWork

ENVS = 4
LONGEST_DELAY_S = 0.003


class _Dawdling(TrainingWork):
    """Takes a while at random before each piece of work."""

    delays: random.Random
    lock = threading.Lock()

    def _dawdle(self) -> None:
        with self.lock:
            delay_s = self.delays.random() * LONGEST_DELAY_S
        time.sleep(delay_s)

    def train_batch(self, env: Any, batch_index: int, batch: Any) -> None:
        self._dawdle()
        super().train_batch(env, batch_index, batch)

    def validate(self, env: Any, step: int, beat: Any) -> Any:
        self._dawdle()
        return super().validate(env, step, beat)

    def apply(self, env: Any, decision: Any) -> Any:
        self._dawdle()
        return super().apply(env, decision)


@pytest.mark.parametrize("task", [TINY, TINY_LM])
@pytest.mark.parametrize("seed", [1, 2])
def test_schedule_of_the_lanes_changes_no_bit(
    task: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tiny_run(tmp_path / "plain", task=task, n_envs=ENVS, run={"lanes": 1}).run_dir
    work = type("Dawdling", (_Dawdling,), {"delays": random.Random(seed)})
    monkeypatch.setattr(vectorized, "TrainingWork", work)

    run_dir = tiny_run(tmp_path / "fuzzed", task=task, n_envs=ENVS, run={"lanes": 4}).run_dir

    assert lines_of(run_dir) == lines_of(plain)
    assert weights_digest(last_checkpoint(run_dir)) == weights_digest(last_checkpoint(plain))
