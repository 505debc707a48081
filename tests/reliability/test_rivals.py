"""Of two processes that resume one run at once, one wins, and nothing changes hands half done."""

import random

import pytest
from tools.soak.rivals import CLOSE, LOCK, Contest, Pair, random_pair


@pytest.fixture(scope="module")
def contest(tmp_path_factory: pytest.TempPathFactory) -> Contest:
    return Contest(tmp_path_factory.mktemp("contest"))


def test_run_that_was_resumed_between_two_locks_is_not_written_by_both(contest: Contest) -> None:
    locks = [place for place, name in enumerate(contest.steps, start=1) if name == LOCK]
    # The first takes the run, so that a rival before it comes after the other's end.
    num_winners = [contest.hold(Pair(place)) for place in locks]
    assert num_winners == [2, *[1 for _ in locks[1:]]]


def test_two_resumes_held_at_any_steps_end_as_one(contest: Contest) -> None:
    pair = random_pair(random.Random(16), len(contest.steps))
    assert contest.hold(pair) in (1, 2)


def test_run_that_is_giving_up_its_files_is_resumed_wholly_or_not_at_all(contest: Contest) -> None:
    closes = [place for place, name in enumerate(contest.steps, start=1) if name == CLOSE]
    for place in closes:
        assert contest.hold(Pair(place)) in (1, 2)
