"""The trainer: how a run begins, goes on from a checkpoint, and ends."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.simic.training.small_runs import TASK, force_updates, read_events, small_run

from esper.leyline.errors import InterruptedRunError, RunFailedError, TelemetryLostError
from esper.leyline.jobs import merge_job
from esper.leyline.telemetry import Event, EventType
from esper.nissa.bus.recording_hub import RecordingHub
from esper.runtime.tasks import all_tasks
from esper.simic.training import vectorized
from esper.simic.training.checkpoints.checkpointer import Checkpointer
from esper.simic.training.checkpoints.resuming import load_run
from esper.simic.training.policy_controller import PolicyController
from esper.simic.training.vectorized import run_job
from esper.tolaria.engine import WorkerEngine


def go_on(directory: Path, checkpoint: str, rounds: int, **training: object) -> list[Event]:
    """Go on from a checkpoint of the only run in a directory and return its whole log."""
    (path,) = directory.glob(f"*/checkpoints/{checkpoint}")
    job, _ = merge_job(
        (
            "test",
            {
                "training": {"task": TASK, "n_episodes": rounds, **training},
                "run": {"telemetry_dir": str(directory), "fsync": "never", "lanes": 1},
            },
        ),
        tasks=all_tasks(),
    )
    run_job(job, resumed=load_run(path))
    return read_events(path.parent.parent / "events.jsonl")


@pytest.mark.parametrize("checkpoint", ["round-000000.pt", "round-000001.pt"])
def test_a_resumed_run_emits_nothing_twice(tmp_path: Path, checkpoint: str) -> None:
    whole = small_run(tmp_path, n_episodes=2, max_epochs=2)

    again = go_on(tmp_path, checkpoint, rounds=2, max_epochs=2)

    assert Counter(event.event_type for event in again) == whole.counts
    assert [event.seq for event in again] == list(range(len(again)))


def test_an_escalation_goes_on_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_updates(monkeypatch, kl_divergence=0.3)
    first = small_run(tmp_path, n_episodes=1, max_epochs=6)
    assert first.result.state.escalation.steps_left == 5

    events = go_on(tmp_path, "round-000001.pt", rounds=2, max_epochs=6)

    reported = [event for event in events if event.event_type is EventType.OBSERVATION_STATS]
    assert [(event.round, event.step) for event in reported] == [(1, step) for step in range(5)]


def test_anomaly_streaks_go_on_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_updates(monkeypatch, gradient_norm=1.0)
    small_run(tmp_path, n_episodes=1, max_epochs=2)
    force_updates(monkeypatch, gradient_norm=2.0)

    events = go_on(tmp_path, "round-000001.pt", rounds=2, max_epochs=2)

    (alarm,) = [item for item in events if item.event_type is EventType.GRADIENT_PATHOLOGY_DETECTED]
    assert (alarm.round, alarm.data.running_mean, alarm.data.drift_fraction) == (1, 1.0, 1.0)


def test_a_run_that_is_asked_to_stop_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: PolicyController, *_: object) -> None:
        raise InterruptedRunError("received SIGINT")

    monkeypatch.setattr(PolicyController, "learn", interrupted)

    run = small_run(tmp_path)

    assert isinstance(run.error, InterruptedRunError)
    finished = run.events[-1].data
    assert (finished.status, finished.reason) == ("interrupted", str(run.error))
    assert finished.rounds_completed == 0


def test_a_run_beside_which_something_fails_says_so(tmp_path: Path) -> None:
    async def failing(hub: object) -> None:
        raise RunFailedError("port 8765 is in use")

    settings = {"telemetry_dir": str(tmp_path), "fsync": "never", "lanes": 1}
    job, _ = merge_job(("test", {"training": {"task": TASK}, "run": settings}), tasks=all_tasks())

    with pytest.raises(RunFailedError, match="port 8765"):
        run_job(job, monitors=[failing])

    (log,) = tmp_path.glob("*/events.jsonl")
    finished = read_events(log)[-1]
    assert finished.event_type is EventType.RUN_FINISHED
    assert finished.data.status == "failed"
    assert finished.data.reason == "a task that runs beside the training has failed"


def test_a_run_that_lost_its_log_ends_with_that_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = RecordingHub()
    hub.failure = TelemetryLostError(tmp_path / "events.jsonl", None, "disk full", 3)
    monkeypatch.setattr(vectorized, "get_hub", lambda: hub)

    run = small_run(tmp_path)

    assert isinstance(run.error, TelemetryLostError)


def test_a_replaced_hub_gets_every_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = RecordingHub()
    monkeypatch.setattr(vectorized, "get_hub", lambda: hub)

    run = small_run(tmp_path, max_epochs=2)

    assert run.events == []
    kinds = [event.event_type for event in hub.events]
    assert kinds[0] is EventType.TRAINING_STARTED
    assert kinds[-1] is EventType.RUN_FINISHED
    assert kinds.count(EventType.LAST_ACTION) == 4
    assert hub.num_flushes == 2
    assert run.error is None


def test_envs_of_a_round_start_before_what_does_not_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    start, save, learn = WorkerEngine.start_round, Checkpointer.save, PolicyController.learn

    def noted_start(engine: WorkerEngine, round_index: int) -> None:
        calls.append(f"start {round_index}")
        start(engine, round_index)

    def noted_save(self: Checkpointer, *arguments: Any, **options: Any) -> Any:
        calls.append("save")
        return save(self, *arguments, **options)

    def noted_learn(self: PolicyController, *arguments: Any) -> Any:
        calls.append("learn")
        return learn(self, *arguments)

    monkeypatch.setattr(WorkerEngine, "start_round", noted_start)
    monkeypatch.setattr(Checkpointer, "save", noted_save)
    monkeypatch.setattr(PolicyController, "learn", noted_learn)

    small_run(tmp_path, n_episodes=2, max_epochs=2)

    assert calls == ["start 0", "save", "start 1", "learn", "save", "learn", "save"]
