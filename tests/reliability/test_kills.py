"""A run that is killed at any moment and resumed is the run that was never killed."""

import random
import signal
from pathlib import Path

from tests.builders.fingerprints import fingerprint
from tools.soak.children import Child, Deed, Moment, Site, only_run, train_flags
from tools.soak.kills import Whole, kill_and_resume

NUM_KILLS = 6
KILLS_PER_RUN = 3


def test_killed_and_resumed_run_equals_the_one_that_was_never_killed(
    undisturbed: Whole, tmp_path: Path
) -> None:
    rng, num_kills = random.Random(11), 0
    while num_kills < NUM_KILLS:
        num_kills += kill_and_resume(tmp_path, rng, undisturbed, KILLS_PER_RUN)


def test_killed_run_really_ends_in_the_middle(undisturbed: Whole, tmp_path: Path) -> None:
    moment = Moment(Site.FILE, undisturbed.counts[Site.FILE] // 2, Deed.KILL)
    ended = Child(train_flags(tmp_path / "killed"), tmp_path / "killed.txt", moment).wait()

    run_dir = only_run(tmp_path / "killed")
    assert ended.code == -signal.SIGKILL
    assert run_dir is not None
    assert fingerprint(run_dir) != undisturbed.fingerprint


def test_another_seed_is_another_run(undisturbed: Whole, tmp_path: Path) -> None:
    flags = train_flags(tmp_path / "other", "--seed", "7")
    assert Child(flags, tmp_path / "other.txt").wait().code == 0

    run_dir = only_run(tmp_path / "other")
    assert run_dir is not None
    assert fingerprint(run_dir) != undisturbed.fingerprint
