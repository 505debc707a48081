"""Position, rate, time left and usual pauses, computed from timestamps alone."""

import msgspec
import pytest
from tests.karn.story import Story, Wire, started

from esper.karn.view.progress import MAX_USUAL_PAUSE_S, ProgressTrack
from esper.leyline.payloads import BatchStats, RunFinished
from esper.leyline.telemetry import Event, EventScope

STATS = BatchStats(
    seeds_germinated=0,
    seeds_fossilized=0,
    seeds_pruned=0,
    rollback_attempts=0,
    unattributed_penalties=0,
    update_performed=True,
    skip_reason=None,
)
FACTS = started(Story(num_rounds=4, num_steps=10, num_envs=3))
FINISH = RunFinished(
    status="completed",
    reason="done",
    rounds_completed=4,
    episodes_completed=12,
    best_accuracy_pct=None,
    final_accuracy_pct=None,
    duration_s=40.0,
)


def event(ts: float, round_index: int | None = None, step: int | None = None) -> Event:
    plain = Wire().event(STATS, EventScope(round=round_index, step=step))
    return msgspec.structs.replace(plain, ts=ts)


def track(*events: Event) -> ProgressTrack:
    progress = ProgressTrack(facts=FACTS)
    for item in events:
        progress.note(item)
    return progress


def test_run_without_a_first_event_waits_and_knows_no_figure() -> None:
    view = ProgressTrack().view(None, None)
    assert view.status == "waiting"
    assert (view.fraction, view.eta_s, view.elapsed_s, view.usual_pause_s) == (None,) * 4


def test_rate_and_time_left_follow_from_two_positions() -> None:
    # 5 steps in 10 s by 3 envs; 40 - 15 steps are left.
    view = track(event(100.0, 1, 0), event(110.0, 1, 5)).view(50.0, 60.0)

    assert view.steps_per_s == pytest.approx(0.5 * 3)
    assert view.eta_s == pytest.approx(25 / 0.5)
    assert view.fraction == pytest.approx(15 / 40)
    assert view.elapsed_s == pytest.approx(10.0)
    assert (view.accuracy_pct, view.best_accuracy_pct) == (50.0, 60.0)


def test_one_position_has_no_rate() -> None:
    view = track(event(100.0, 0, 3)).view(None, None)
    assert (view.steps_per_s, view.eta_s) == (None, None)


def test_completed_rounds_count_even_if_their_steps_were_not_seen() -> None:
    progress = track(event(100.0, 0, 0))
    progress.complete_rounds(2, 104.0)
    progress.complete_rounds(1, 105.0)

    view = progress.view(None, None)
    assert view.rounds_completed == 2
    assert view.fraction == pytest.approx(20 / 40)


def test_finished_run_has_its_status_and_no_time_left() -> None:
    progress = track(event(100.0, 3, 0), event(104.0, 3, 9))
    progress.finish = FINISH

    view = progress.view(None, None)
    assert (view.status, view.reason, view.eta_s, view.duration_s) == (
        *("completed", "done"),
        None,
        40.0,
    )


def test_pause_once_per_round_is_still_usual_in_the_next_round() -> None:
    progress = track(event(100.0, 0, 0), event(107.0, 0, 1), event(108.0, 1, 0))
    assert progress.view(None, None).usual_pause_s == pytest.approx(7.0)

    progress.note(event(109.0, 2, 0))
    assert progress.view(None, None).usual_pause_s == pytest.approx(1.0)


def test_gap_of_a_suspended_machine_is_capped_and_a_clock_set_back_counts_as_none() -> None:
    progress = track(event(0.0, 0, 0), event(1e6, 0, 1))
    assert progress.view(None, None).usual_pause_s == MAX_USUAL_PAUSE_S
    assert track(event(50.0, 0, 0), event(10.0, 0, 1)).view(None, None).usual_pause_s == 0.0


def test_late_event_of_an_earlier_step_does_not_move_the_position_back() -> None:
    progress = track(event(1.0, 1, 6), event(2.0, 1, 2), event(3.0, 0, 9))
    view = progress.view(None, None)
    assert (view.round, view.step) == (1, 6)
