"""Of two processes that resume one run at once, one wins, and nothing changes hands half done."""

from pathlib import Path

from tools.soak.rivals import interrupted_run, resume_twice

NUM_PAIRS = 3


def test_two_resumes_of_one_run_end_as_one(tmp_path: Path) -> None:
    whole, expected = interrupted_run(tmp_path)
    num_winners = [resume_twice(tmp_path, whole, expected, seed) for seed in range(NUM_PAIRS)]
    assert 1 in num_winners
