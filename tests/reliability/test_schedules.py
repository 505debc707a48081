"""What a run computes does not depend on when its lanes get to work."""

from pathlib import Path

import pytest
from tests.builders.fingerprints import fingerprint
from tests.builders.tiny_runs import short_run
from tests.builders.tiny_tasks import TINY, TINY_LM
from tools.soak.schedules import NUM_ENVS, dawdling_lanes


@pytest.mark.parametrize("task", [TINY, TINY_LM])
def test_lanes_and_delays_change_no_bit(task: str, tmp_path: Path) -> None:
    plain = fingerprint(short_run(tmp_path, task, n_envs=NUM_ENVS))

    for lanes in (2, 8):
        with dawdling_lanes(seed=lanes):
            assert fingerprint(short_run(tmp_path, task, lanes=lanes, n_envs=NUM_ENVS)) == plain


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    plain, other = (
        fingerprint(short_run(tmp_path, TINY, lanes=2, n_envs=2, seed=seed)) for seed in (1, 2)
    )
    assert plain != other
