"""A log that was cut or changed is read up to the damage, and the damage is reported."""

import random
from pathlib import Path

import pytest
from tools.soak.damage import SmallLog, check_cut, check_flip, check_flip_without_checksums

NUM_SAMPLES = 60


@pytest.fixture
def log(tmp_path: Path) -> SmallLog:
    return SmallLog(tmp_path)


def test_cut_log_shows_its_damage_and_no_event_that_was_not_written(log: SmallLog) -> None:
    rng = random.Random(1)
    for _ in range(NUM_SAMPLES):
        check_cut(log, rng.randrange(len(log.data)))


def test_flipped_bit_is_reported_and_never_read_as_an_event(log: SmallLog) -> None:
    rng = random.Random(2)
    for _ in range(NUM_SAMPLES):
        check_flip(log, rng.randrange(8 * (len(log.data) + len(log.checksums))))


def test_flipped_bit_that_nothing_vouches_for_does_no_harm(log: SmallLog) -> None:
    rng = random.Random(3)
    for _ in range(NUM_SAMPLES):
        check_flip_without_checksums(log, rng.randrange(8 * len(log.data)))


def test_whole_log_shows_no_damage(log: SmallLog) -> None:
    log.put(log.data, log.checksums)
    with pytest.raises(AssertionError, match="the damage is not reported"):
        log.check()
