"""What a run reached."""

import gzip
from pathlib import Path

from tests.nissa.fake_run import FakeRun, write_log

from esper.leyline.payloads import BatchEpochCompleted
from esper.nissa.analysis.run_outcome import RunOutcome, read_outcome

RUN = FakeRun(num_rounds=3, num_envs=1, num_steps=2)
LAST = [event.data for event in RUN.events() if isinstance(event.data, BatchEpochCompleted)][-1]


def test_outcome_is_that_of_the_last_round_and_the_end(tmp_path: Path) -> None:
    write_log(tmp_path / "log", RUN.lines())
    assert read_outcome(tmp_path / "log") == RunOutcome(
        status="completed",
        rounds_completed=3,
        accuracy_pct=LAST.mean_accuracy_pct,
        best_accuracy_pct=91.5,
        task_return=LAST.mean_task_return,
    )


def test_unfinished_run_has_no_status(tmp_path: Path) -> None:
    write_log(tmp_path / "log", list(RUN.lines())[:-1])
    outcome = read_outcome(tmp_path / "log")
    assert (outcome.status, outcome.best_accuracy_pct, outcome.rounds_completed) == (None, None, 3)


def test_log_of_another_format_has_no_outcome(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_bytes(b'{"event_type":"X"}\nnothing\n')
    (tmp_path / "packed").write_bytes(gzip.compress(b"\n".join(RUN.lines())))
    assert read_outcome(tmp_path / "foreign") == RunOutcome()
    assert read_outcome(tmp_path / "packed") == RunOutcome()
