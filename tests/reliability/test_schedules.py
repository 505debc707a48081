"""What a run computes does not depend on when its lanes get to work."""

from pathlib import Path

import pytest
from tools.soak.fingerprints import fingerprint
from tools.soak.schedules import dawdling_lanes, tiny_run
from tools.soak.tiny import IMAGES, TEXT


@pytest.mark.parametrize("task", [IMAGES, TEXT])
def test_lanes_and_delays_change_no_bit(task: str, tmp_path: Path) -> None:
    plain = fingerprint(tiny_run(tmp_path, task, lanes=1))

    for lanes in (2, 4, 8):
        with dawdling_lanes(seed=lanes):
            assert fingerprint(tiny_run(tmp_path, task, lanes=lanes)) == plain


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    plain, other = (
        fingerprint(tiny_run(tmp_path, IMAGES, lanes=2, n_envs=2, seed=seed)) for seed in (1, 2)
    )
    assert plain != other
