"""The state of a run: rolling means, bests, and the way through a checkpoint."""

import math
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.messages import batch_summary, make_episode

from esper.leyline.effects import effect_of
from esper.leyline.payloads import SeedGerminated
from esper.leyline.reports import BatchSummary, EpisodeRecord, EpisodeStatus
from esper.simic.seed_management import Escalation
from esper.simic.telemetry.anomaly import AnomalyState
from esper.simic.telemetry.scoreboard import Scoreboard
from esper.simic.training.checkpoints.run_state import HISTORY_ROUNDS, ROLLING_ROUNDS, RunState


def episode(loss: float | None, status: EpisodeStatus = EpisodeStatus.TIMEOUT) -> EpisodeRecord:
    return make_episode(final_loss=loss, status=status)


def summary(
    round_index: int, accuracy: float | None, state: RunState, *episodes: EpisodeRecord
) -> BatchSummary:
    return batch_summary(
        accuracy,
        round=round_index,
        episodes=episodes,
        rolling_accuracy_pct=state.rolling_with(accuracy),
    )


@given(st.lists(st.none() | st.floats(0.0, 100.0), max_size=25))
def test_rolling_and_best_agree_with_the_whole_history(accuracies) -> None:
    state = RunState()
    for index, accuracy in enumerate(accuracies):
        reported = summary(index, accuracy, state, episode(1.0))
        measured = [value for value in accuracies[: index + 1] if value is not None]
        before = [value for value in accuracies[:index] if value is not None]
        is_best = accuracy is not None and (not before or accuracy > max(before))
        assert state.is_best(reported, by_loss=False) == is_best
        state = state.after_round(reported)

        if measured:
            window = measured[-ROLLING_ROUNDS:]
            assert state.rolling_accuracy_pct == pytest.approx(statistics.fmean(window))
        assert state.best_accuracy_pct == max(measured, default=None)
        assert state.final_accuracy_pct == accuracy
        assert state.rounds_completed == state.episodes_completed == index + 1
    assert len(state.history) == len(accuracies)


def test_long_run_keeps_its_last_rounds_and_counts_all() -> None:
    state = RunState()
    for index in range(HISTORY_ROUNDS + 5):
        state = state.after_round(summary(index, 1.0, state, episode(1.0)))

    kept = [reported.round for reported in state.history]
    assert kept == list(range(5, HISTORY_ROUNDS + 5))
    assert (state.rounds_completed, state.duration_s) == (HISTORY_ROUNDS + 5, HISTORY_ROUNDS + 5)


@given(st.lists(st.floats(0.0, 9.0) | st.sampled_from([math.nan, math.inf]), max_size=12))
def test_a_loss_that_is_not_finite_is_never_the_best_and_hides_no_later_one(losses) -> None:
    state = RunState()
    for index, loss in enumerate(losses):
        reported = summary(index, None, state, episode(loss))
        before = [value for value in losses[:index] if math.isfinite(value)]
        is_best = math.isfinite(loss) and (not before or loss < min(before))
        assert state.is_best(reported, by_loss=True) == is_best
        state = state.after_round(reported)

    assert state.best_loss == min((loss for loss in losses if math.isfinite(loss)), default=None)


def test_envs_that_broke_have_no_say_in_the_best() -> None:
    reported = summary(
        0, None, RunState(), episode(4.0), episode(0.1, EpisodeStatus.FAILED), episode(None)
    )

    assert RunState().after_round(reported).best_loss == 4.0


def test_state_survives_the_form_that_checkpoints_keep() -> None:
    germinated = SeedGerminated(
        slot_id="r0c0",
        seed_id="a",
        blueprint="norm",
        num_params=1,
        style="SIGMOID_ADD",
        tempo_steps=5,
        alpha_target=1.0,
    )
    state = RunState(
        anomalies=AnomalyState(
            low_entropy_streaks={"op": 2},
            gradient_norm_mean=0.5,
            gradient_health_mean=1.0,
            consecutive_skips=2,
        ),
        scoreboard=Scoreboard().noting([effect_of(germinated)]),
        escalation=Escalation(steps_left=3),
    )
    state = state.after_round(summary(0, 50.0, state, episode(1.0)))

    assert msgspec.convert(msgspec.to_builtins(state), RunState) == state
