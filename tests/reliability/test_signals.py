"""A run that gets a signal at any moment stops at once and cleanly."""

import random
from pathlib import Path

import pytest
from tests.builders.fingerprints import fingerprint
from tools.soak.children import Child, Deed, Moment, Site, only_run, train_flags
from tools.soak.kills import Whole
from tools.soak.signals import DEEDS, random_stop, stop_and_look

NUM_STOPS = 5


def test_one_signal_at_any_moment_ends_a_run_cleanly(undisturbed: Whole, tmp_path: Path) -> None:
    rng = random.Random(3)
    for number in range(NUM_STOPS):
        stop_and_look(tmp_path, random_stop(rng, undisturbed), undisturbed, resumes=number == 0)


@pytest.mark.parametrize("deed", DEEDS)
def test_signal_before_the_first_checkpoint_ends_a_run_cleanly(
    deed: Deed, undisturbed: Whole, tmp_path: Path
) -> None:
    assert (
        stop_and_look(tmp_path, Moment(Site.FILE, 1, deed), undisturbed, resumes=False) is not None
    )


def test_suspended_run_goes_on_as_if_nothing_had_happened(
    undisturbed: Whole, tmp_path: Path
) -> None:
    middle = Moment(Site.POINT, undisturbed.counts[Site.POINT] // 2, Deed.SUSPEND)
    flags = train_flags(tmp_path / "runs", "--lane-deadline", "2")
    child = Child(flags, tmp_path / "output.txt", middle)
    child.wake_after(3.0)

    ended = child.wait()

    run_dir = only_run(tmp_path / "runs")
    assert ended.code == 0, ended.output
    assert run_dir is not None
    assert fingerprint(run_dir) == undisturbed.fingerprint
    assert "the event loop was blocked for" in ended.output
