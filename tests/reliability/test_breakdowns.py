"""A disk that fails ends a run with one sentence; a thread that hangs ends it with its stack."""

import random
from pathlib import Path

import pytest
from tools.soak.breakdowns import DISK_DEEDS, fail_disk, hang
from tools.soak.children import Deed, Moment, Site
from tools.soak.kills import Whole

NUM_FAILURES = 2


@pytest.mark.parametrize("deed", DISK_DEEDS)
def test_failing_disk_is_reported_and_loses_nothing_that_was_saved(
    deed: Deed, undisturbed: Whole, tmp_path: Path
) -> None:
    rng = random.Random(deed)
    for index in rng.sample(range(1, undisturbed.counts[Site.FILE] * 3 // 4), NUM_FAILURES):
        fail_disk(tmp_path, Moment(Site.FILE, index, deed), undisturbed)


def test_hanging_thread_ends_the_run_and_shows_where_it_hangs(
    undisturbed: Whole, tmp_path: Path
) -> None:
    index = random.Random(2).randint(2, undisturbed.counts[Site.POINT] // 2)
    hang(tmp_path, Moment(Site.POINT, index, Deed.HANG))
