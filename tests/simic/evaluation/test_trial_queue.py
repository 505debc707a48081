"""The trials of a study that several commands search, each with a queue of its own."""

from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from esper.leyline.errors import InterruptedRunError, UsageError
from esper.leyline.sweeps import Dimension, SweepSpec, TrialRow
from esper.simic.evaluation.trial_queue import COMMAND, TrialQueue, open_queue, row_of
from esper.tolaria.stopping import StopFlag


@pytest.fixture
def spec(tmp_path: Path) -> SweepSpec:
    return SweepSpec(
        name="try",
        space={"training.lr": Dimension(low=0.0, high=1.0)},
        storage=str(tmp_path / "try.journal"),
        trials=2,
    )


@pytest.fixture
def queues(spec: SweepSpec) -> Iterator[tuple[TrialQueue, TrialQueue]]:
    with open_queue(spec) as one, open_queue(spec) as other:
        yield one, other


def begun(queue: TrialQueue) -> optuna.Trial:
    """Take a trial, and draw its setting."""
    trial = queue.next_trial(StopFlag(), id)
    assert trial is not None
    trial.suggest_float("training.lr", 0.0, 1.0)
    return trial


def states(queue: TrialQueue) -> list[str]:
    return [trial.state.name for trial in queue.study.trials]


def test_each_command_has_trials_and_settings_of_its_own(
    queues: tuple[TrialQueue, TrialQueue],
) -> None:
    one, other = map(begun, queues)
    assert (one.number, other.number) == (0, 1)
    assert one.params != other.params


def test_the_last_trials_of_others_are_waited_for_and_named_once(
    queues: tuple[TrialQueue, TrialQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = queues
    theirs = begun(one)
    one.study.tell(begun(other), 1.0)
    noted: list[TrialRow] = []
    waits = iter([None, lambda: one.study.tell(theirs, 2.0)])

    def wait(_: float) -> None:
        if (step := next(waits)) is not None:
            step()

    monkeypatch.setattr("esper.simic.evaluation.trial_queue.time.sleep", wait)
    assert other.next_trial(StopFlag(), noted.append) is None
    assert [(row.number, row.reason) for row in noted] == [(0, "another command runs it")]


def test_waiting_ends_with_a_signal(queues: tuple[TrialQueue, TrialQueue]) -> None:
    one, other = queues
    stop = StopFlag()
    for queue in queues:
        begun(queue)
    stop.set("received SIGINT")
    with pytest.raises(InterruptedRunError, match="received SIGINT"):
        other.next_trial(stop, id)
    assert states(one) == ["RUNNING", "RUNNING"]


def test_a_command_that_ends_puts_its_trial_back(spec: SweepSpec) -> None:
    with open_queue(spec) as one:
        settings = begun(one).params
    with open_queue(spec) as other:
        again = begun(other)
        assert states(other) == ["FAIL", "RUNNING"]
        assert again.params == settings
        assert row_of(other.study.trials[0]).reason == "interrupted; its settings are tried again"


def test_a_trial_of_a_command_that_was_killed_is_noticed_by_one_that_goes_on(
    spec: SweepSpec, tmp_path: Path
) -> None:
    with open_queue(spec) as queue:
        lost = begun(queue)
        # What a killed command leaves: a file that nobody holds.
        (tmp_path / "try.journal.in-use-dead").touch()
        lost.set_user_attr(COMMAND, "try.journal.in-use-dead")
        noted: list[TrialRow] = []
        again = queue.next_trial(StopFlag(), noted.append)
        assert again is not None
        assert (again.number, [row.number for row in noted]) == (1, [0])
        assert again.suggest_float("training.lr", 0.0, 1.0) == lost.params["training.lr"]
    assert [path.name for path in tmp_path.glob("*.in-use*")] == ["try.journal.in-use"]


def test_a_trial_of_another_directory_is_neither_failed_nor_waited_for(spec: SweepSpec) -> None:
    with open_queue(spec) as queue:
        begun(queue).set_user_attr(COMMAND, "elsewhere.in-use-1")
        for _ in range(2):
            queue.study.tell(begun(queue), 1.0)
        assert queue.next_trial(StopFlag(), id) is None
        assert states(queue) == ["RUNNING", "COMPLETE", "COMPLETE"]


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("no/try.journal", "cannot write no/try.journal.in-use: No such file or directory"),
        ("notes.txt", "the study in notes.txt cannot be opened: "),
        ("folder", "the study in folder cannot be opened: .*Is a directory"),
        ("sqlite:///no/try.db", "the study in sqlite:///no/try.db cannot be opened: "),
        ("nothing://try", "the study in nothing://try cannot be opened: "),
    ],
)
def test_a_study_that_cannot_be_opened_is_one_sentence(
    storage: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("notes.txt").write_text("not a journal\n")
    space = {"training.lr": Dimension(low=0, high=1)}
    with (
        pytest.raises(UsageError, match=message) as caught,
        open_queue(SweepSpec(name="try", space=space, storage=storage)),
    ):
        pass
    assert len(str(caught.value).splitlines()) == 1
