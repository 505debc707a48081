"""The loss family pays for a loss that falls."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simic.rewards.builders import inputs, scheme, seed

from esper.leyline.rewards import LossRewardConfig, RewardFamily
from esper.leyline.stages import Stage
from esper.simic.rewards.dispatcher import compute_reward
from esper.tamiyo.tracker import Measurement, SignalTracker

RULES = scheme(family=RewardFamily.LOSS)


def terms(*seeds, **changes):
    return compute_reward(inputs(*seeds, **changes), RULES).components


@pytest.mark.parametrize(
    ("delta", "paid"),
    [(0.05, 5.0), (-0.05, -2.5), (10.0, 25.0), (-10.0, -12.5), (0.0, 0.0), (None, 0.0)],
)
def test_improvement_is_positive_and_a_regression_counts_half(delta, paid) -> None:
    assert terms(loss_delta=delta).loss_delta == pytest.approx(paid)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 5.0), st.floats(0.1, 5.0))
def test_the_trackers_delta_has_the_sign_that_is_paid(before: float, after: float) -> None:
    tracker = SignalTracker()
    for step, loss in enumerate((before, after)):
        tracked = tracker.observe(
            Measurement(
                step=step,
                train_loss=loss,
                train_accuracy_pct=0.0,
                val_loss=loss,
                val_accuracy_pct=0.0,
            )
        )
    paid = terms(loss_delta=tracked.signals.loss_delta).loss_delta
    assert (paid > 0.0) == (after < before)
    assert (paid < 0.0) == (after > before)


def test_rent_spares_young_seeds_and_each_is_judged_by_itself() -> None:
    seeds = [
        seed("r0c0", Stage.TRAINING, age_steps=2, num_params=5000),
        seed("r0c1", Stage.HOLDING, age_steps=3, num_params=1000),
        seed("r0c2", Stage.FOSSILIZED, age_steps=30, num_params=500),
    ]
    assert terms(*seeds).rent == pytest.approx(-0.05 * math.log1p(1500 / 1000))


@pytest.mark.parametrize(("loss", "share"), [(2.3, 0.0), (1.3, 0.5), (0.1, 1.0), (9.0, 0.0)])
def test_the_end_pays_for_the_way_from_a_guess_to_the_target(loss: float, share: float) -> None:
    assert terms(step=99, val_loss=loss).terminal == pytest.approx(share)
    assert terms(step=98, val_loss=loss).terminal == 0.0


def test_the_configuration_replaces_the_tasks_figures() -> None:
    loss = LossRewardConfig(loss_delta_std=0.5, rent_weight=0.2)
    replaced = scheme(family=RewardFamily.LOSS, loss=loss).task
    assert (replaced.loss_delta_std, replaced.rent_weight) == (0.5, 0.2)
    assert (RULES.task.loss_delta_std, RULES.task.rent_weight) == (0.05, 0.05)
