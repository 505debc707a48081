"""Rows per round and per step: what is merged into a row, and which rows are dropped."""

from statistics import fmean

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.karn.view.round_track import RoundTrack, StepTrack
from esper.karn.view.snapshot import PolicyView, RoundView
from esper.karn.view.thresholds import LIMITS
from esper.leyline import payloads

BATCH = payloads.BatchEpochCompleted(
    episodes_completed=2,
    mean_accuracy_pct=50.0,
    rolling_accuracy_pct=45.0,
    mean_reward=1.0,
    env_accuracies_pct=(40.0, None, 60.0),
    env_rewards=(None, 2.0, 0.5),
)
STATS = payloads.BatchStats(
    seeds_germinated=3,
    seeds_fossilized=1,
    seeds_pruned=2,
    rollback_attempts=0,
    unattributed_penalties=0,
    update_performed=False,
    skip_reason="kl_stop",
)


def test_events_of_a_round_are_merged_into_one_row() -> None:
    track = RoundTrack()
    track.note_stats(0, STATS, 1)
    assert track.complete() == []
    track.note_batch(0, BATCH, 2)
    track.count_failure(0, 3)
    track.count_rollback(0, 4)
    track.count_rollback(0, 5)

    [row] = track.complete()
    assert (row.low_accuracy_pct, row.mean_accuracy_pct, row.high_accuracy_pct) == (40.0, 50.0, 60)
    assert (row.low_reward, row.mean_reward, row.high_reward) == (0.5, 1.0, 2.0)
    assert (row.num_germinated, row.num_fossilized, row.num_pruned) == (3, 1, 2)
    assert (row.is_update_performed, row.skip_reason) == (False, "kl_stop")
    assert (row.num_failed, row.num_rollbacks) == (1, 2)
    assert track.marks.since(4) == [0]


def test_best_mean_survives_the_thinning_of_its_row() -> None:
    track = RoundTrack()
    num_rounds = LIMITS.max_rounds + 1
    for index in range(num_rounds):
        mean = 99.0 if index == 1 else 1.0
        track.note_batch(index, msgspec.structs.replace(BATCH, mean_accuracy_pct=mean), index)

    assert 1 not in track.rows
    assert track.best_mean_pct == 99.0


def test_thinning_keeps_the_first_round_and_the_newer_half() -> None:
    track = RoundTrack()
    num_rounds = LIMITS.max_rounds * 3
    for index in range(num_rounds):
        track.note_batch(index, BATCH, index)
        assert len(track.rows) <= LIMITS.max_rounds

    kept = list(track.rows)
    assert kept == sorted(kept)
    assert kept[0] == 0
    newer = LIMITS.max_rounds // 2
    assert kept[-newer:] == list(range(num_rounds - newer, num_rounds))
    assert track.marks.versions.keys() == track.rows.keys()


def test_latest_policy_is_that_of_the_last_round_with_an_update() -> None:
    unmeasured = dict.fromkeys(PolicyView.__struct_fields__)
    first, last = (PolicyView(**{**unmeasured, "kl_divergence": kl}) for kl in (0.1, 0.2))
    rows = (first, last, None)
    track = RoundTrack(
        rows={index: RoundView(round=index, policy=policy) for index, policy in enumerate(rows)}
    )
    assert track.latest_policy() is last
    assert RoundTrack().latest_policy() is None


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.floats(0.0, 100.0)), max_size=30))
def test_step_rows_have_mean_and_range_of_their_accuracies(
    noted: list[tuple[int, float | None]],
) -> None:
    track = StepTrack()
    for version, (step, accuracy) in enumerate(noted):
        track.note(0, step, accuracy, version)

    measured = {step for step, accuracy in noted if accuracy is not None}
    assert track.rows.keys() == measured
    for step in measured:
        values = [value for other, value in noted if other == step and value is not None]
        row = track.rows[step]
        assert row.num_envs == len(values)
        assert row.mean_accuracy_pct == pytest.approx(fmean(values), abs=1e-9)
        assert (row.low_accuracy_pct, row.high_accuracy_pct) == (min(values), max(values))


def test_new_round_drops_the_steps_of_the_one_before() -> None:
    track = StepTrack()
    track.note(0, 0, 10.0, 0)
    track.note(0, 1, 20.0, 1)
    track.note(1, 0, 30.0, 2)

    assert [row.mean_accuracy_pct for row in track.rows.values()] == [30.0]
    assert track.marks.since(1) is None
    assert track.marks.since(2) == []
