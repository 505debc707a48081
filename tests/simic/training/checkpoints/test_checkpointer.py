"""What is saved when, and what an interruption or a lost log still allows."""

from pathlib import Path

import pytest
from tests.builders.tiny_runs import tiny_job
from tests.kasmina.bodies import CNN, EAGER

from esper.leyline.errors import TelemetryLostError
from esper.leyline.payloads import RunFinished
from esper.nissa.bus.recording_hub import RecordingHub
from esper.runtime.tasks import registered_task
from esper.simic.training.checkpoints.checkpoint_store import CheckpointStore
from esper.simic.training.checkpoints.checkpointer import Checkpointer
from esper.simic.training.checkpoints.grown import GrownHeader, GrownWriter
from esper.simic.training.checkpoints.resuming import load_run
from esper.simic.training.checkpoints.run_state import RunState

FINISHED = RunFinished(
    status="completed",
    reason=None,
    rounds_completed=0,
    episodes_completed=0,
    best_accuracy_pct=None,
    final_accuracy_pct=None,
    duration_s=0.0,
)


def keeper_in(directory: Path, hub: RecordingHub, *, every: int = 3) -> Checkpointer:
    header = GrownHeader(task="tiny", host=CNN, slots=("r0c0",), lifecycle=EAGER)
    return Checkpointer(
        task=registered_task("digits").spec,
        store=CheckpointStore(directory),
        job=tiny_job(directory),
        run_id="00000000",
        command="wait",
        hub=hub,
        controller=None,
        every=every,
        is_judged_by_loss=False,
        resumed=None,
        grown=GrownWriter(directory / "grown.pt", lambda round_index, env_id: header),
    )


def rounds_saved(directory: Path) -> list[int]:
    return [load_run(path).state.rounds_completed for path in sorted(directory.glob("round-*.pt"))]


def test_checkpoint_is_due_every_few_rounds_and_after_the_last(tmp_path: Path) -> None:
    checkpointer = keeper_in(tmp_path, RecordingHub(), every=3)

    assert [rounds for rounds in range(1, 9) if checkpointer.is_due(rounds, 8)] == [3, 6, 8]


def test_checkpoint_counts_on_the_events_before_it(tmp_path: Path) -> None:
    hub = RecordingHub()
    checkpointer = keeper_in(tmp_path, hub)
    hub.emit(FINISHED)
    hub.emit(FINISHED)

    saved = checkpointer.save(RunState(rounds_completed=3), is_best=True)

    assert saved.log_seq == 1
    assert hub.num_flushes == 1
    assert load_run(tmp_path / saved.path).header.log_seq == 1
    assert load_run(tmp_path / "best.pt").header.is_best


def test_held_round_is_saved_only_when_asked_and_only_once(tmp_path: Path) -> None:
    checkpointer = keeper_in(tmp_path, RecordingHub())

    checkpointer.stage(RunState(rounds_completed=1), is_best=False)
    assert rounds_saved(tmp_path) == []
    checkpointer.commit_staged()
    checkpointer.commit_staged()

    assert rounds_saved(tmp_path) == [1]
    assert not load_run(tmp_path / "round-000001.pt").header.is_announced


def test_best_round_is_saved_as_such_even_when_no_checkpoint_is_due(tmp_path: Path) -> None:
    hub = RecordingHub()
    checkpointer = keeper_in(tmp_path, hub)

    checkpointer.stage(RunState(rounds_completed=1), is_best=True)
    checkpointer.stage(RunState(rounds_completed=2), is_best=False)

    assert load_run(tmp_path / "best.pt").state.rounds_completed == 1
    assert rounds_saved(tmp_path) == []
    assert hub.num_flushes == 1


def test_saved_round_replaces_the_one_that_was_held(tmp_path: Path) -> None:
    checkpointer = keeper_in(tmp_path, RecordingHub())
    checkpointer.stage(RunState(rounds_completed=2), is_best=False)

    checkpointer.save(RunState(rounds_completed=3), is_best=False)
    checkpointer.commit_staged()

    assert rounds_saved(tmp_path) == [3]


@pytest.mark.parametrize(("last_seq", "is_saved"), [(None, False), (0, False), (1, True)])
def test_held_round_is_saved_despite_a_lost_log_if_its_own_events_are_on_disk(
    last_seq: int | None, is_saved: bool, tmp_path: Path
) -> None:
    hub = RecordingHub()
    checkpointer = keeper_in(tmp_path, hub)
    hub.emit(FINISHED)
    hub.emit(FINISHED)
    checkpointer.stage(RunState(rounds_completed=1), is_best=False)
    hub.failure = TelemetryLostError(tmp_path, 28, "no space left on device", last_seq)

    if is_saved:
        checkpointer.commit_staged()
    else:
        with pytest.raises(TelemetryLostError):
            checkpointer.commit_staged()

    assert rounds_saved(tmp_path) == ([1] if is_saved else [])
