"""The history that the entry point returns: a list of rounds that knows its run."""

from pathlib import Path

from tests.builders.messages import batch_summary

from esper.simic.training.checkpoints.run_state import RunState
from esper.simic.training.run_result import TrainingHistory, TrainingResult


def test_history_is_a_list_of_rounds_and_leads_to_the_run() -> None:
    rounds = (batch_summary(40.0, round=0), batch_summary(50.0, round=1))
    result = TrainingResult(
        agent=None,
        history=rounds,
        state=RunState(rounds_completed=2),
        run_dir=Path("runs/one"),
        traces_dir=None,
        data_note=None,
    )

    history = TrainingHistory(result)

    assert history == list(rounds)
    assert history[-1].mean_accuracy_pct == 50.0
    assert (history.result.run_dir, history.result.state.rounds_completed) == (Path("runs/one"), 2)
    history.pop()
    assert result.history == rounds
