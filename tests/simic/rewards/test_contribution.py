"""The shaped mode: costs, action terms and the end of the episode."""

import math

import pytest
from tests.simic.rewards.builders import acting, inputs, remembered, seed, terms, worth

from esper.leyline.actions import Op
from esper.leyline.rewards import RewardMemory
from esper.leyline.stages import Stage


def test_rent_grows_with_the_logarithm_of_what_was_added() -> None:
    one = seed(stage=Stage.HOLDING, alpha=0.5, num_params=2000)
    growth = (0.0039 * 1000 + 0.5 * 2000) / 1000
    assert terms(inputs(one)).rent == pytest.approx(-0.5 * math.log1p(growth))


def test_rent_has_a_ceiling_and_small_hosts_a_floor() -> None:
    huge = seed(stage=Stage.HOLDING, alpha=1.0, num_params=10**9)
    assert terms(inputs(huge)).rent == -1.5
    small = seed(stage=Stage.HOLDING, alpha=1.0, num_params=200)
    growth = (0.0039 * 50 + 200) / 200
    assert terms(inputs(small, host_params=50)).rent == pytest.approx(-0.5 * math.log1p(growth))


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING, Stage.PRUNED])
def test_seeds_that_do_not_work_yet_or_any_more_pay_no_rent(stage: Stage) -> None:
    assert terms(inputs(seed(stage=stage, num_params=5000, alpha=1.0))).rent == 0.0


def test_a_jump_of_alpha_shocks_by_its_square() -> None:
    one = seed(alpha=0.9, num_params=500)
    memory = remembered(alpha=0.4, num_params=500)
    found = terms(inputs(one, memory=memory)).alpha_shock
    assert found == pytest.approx(-0.1958 * 0.25 * 500 / 1000)


def test_a_seed_that_disappears_falls_to_zero() -> None:
    memory = remembered(alpha=1.0, num_params=500)
    assert terms(inputs(memory=memory)).alpha_shock == pytest.approx(-0.1958 * 0.5)


def test_birth_is_no_shock() -> None:
    successor = seed(alpha=0.9, num_params=500, seed_id="another")
    memory = remembered(alpha=0.0, num_params=500)
    assert terms(inputs(successor, memory=memory)).alpha_shock == 0.0


def test_occupied_slots_beyond_the_free_one_and_fossils_cost() -> None:
    seeds = [seed("r0c0"), seed("r0c1", Stage.FOSSILIZED), seed("r0c2", Stage.EMBARGOED)]
    found = terms(inputs(*seeds))
    assert found.occupancy_rent == pytest.approx(-0.01)
    assert found.fossil_rent == pytest.approx(-0.002)


@pytest.mark.parametrize(
    ("op", "stage", "cost"),
    [
        (Op.WAIT, Stage.HOLDING, 0.0),
        (Op.SET_ALPHA_TARGET, Stage.HOLDING, -0.005),
        (Op.ADVANCE, Stage.TRAINING, -0.1),
        (Op.ADVANCE, Stage.GERMINATED, 0.0),
        (Op.ADVANCE, Stage.BLENDING, 0.0),
    ],
)
def test_actions_cost(op: Op, stage: Stage, cost: float) -> None:
    assert terms(acting(op, seed(stage=stage))).action_shaping == cost


def test_germination_costs_without_a_seed_to_look_at() -> None:
    assert terms(acting(Op.GERMINATE)).action_shaping == -0.15


@pytest.mark.parametrize(
    ("x", "shaping"),
    [(-0.6, 0.15), (-0.4, 0.1), (0.0, -0.3), (2.0, -0.4), (50.0, -0.9)],
)
def test_pruning_is_judged_by_the_contribution(x: float, shaping: float) -> None:
    found = terms(acting(Op.PRUNE, worth(x))).action_shaping
    assert found == pytest.approx(shaping - 0.005)


@pytest.mark.parametrize(("age", "shaping"), [(9, -0.1), (10, 0.0)])
def test_pruning_an_unmeasured_seed_is_early_or_free(age: int, shaping: float) -> None:
    found = terms(acting(Op.PRUNE, seed(stage=Stage.TRAINING, age_steps=age))).action_shaping
    assert found == pytest.approx(shaping - 0.005)


@pytest.mark.parametrize(("steps", "share"), [(1, 0.2), (5, 1.0), (9, 1.0)])
def test_a_good_fossil_is_paid_by_its_time_in_holding(steps: int, share: float) -> None:
    found = terms(acting(Op.FOSSILIZE, worth(2.0, steps_in_stage=steps)))
    whole = 0.5 + 0.1 * 2.0 + 3.0 * math.tanh(1.0 / 3.0)
    assert found.fossilize_bonus == pytest.approx(share * whole)
    assert found.action_shaping == -0.01


def test_a_refused_fossilization_is_never_paid() -> None:
    found = terms(acting(Op.FOSSILIZE, worth(5.0, steps_in_stage=9), has_succeeded=False))
    assert found.fossilize_bonus == 0.0
    assert found.action_shaping == pytest.approx(-1.01)


@pytest.mark.parametrize(
    ("x", "share", "penalty"),
    [
        (0.5, 0.5, -0.2),  # too little
        (0.05, -1.0, -0.7),  # a loss
        (2.0, -1.0, -1.0),  # a loss that the network depends on
        (0.05, -50.0, -1.5),  # a great loss
    ],
)
def test_a_bad_fossil_costs(x: float, share: float, penalty: float) -> None:
    one = worth(x, attributed_pp=share, steps_in_stage=9)
    found = terms(acting(Op.FOSSILIZE, one))
    assert found.fossilize_bonus == 0.0
    assert found.action_shaping == pytest.approx(penalty - 0.01)


def test_action_terms_look_at_the_target_only() -> None:
    target, other = worth(2.0, "r0c0", steps_in_stage=5), worth(-9.0, "r0c1", steps_in_stage=1)
    alone, together = (
        terms(acting(Op.FOSSILIZE, *seeds)) for seeds in ((target,), (target, other))
    )
    assert together.fossilize_bonus == alone.fossilize_bonus
    assert together.action_shaping == alone.action_shaping


def test_the_last_step_pays_for_accuracy() -> None:
    assert terms(inputs(step=98)).terminal == 0.0
    assert terms(inputs(step=99)).terminal == pytest.approx(3.0)
    assert terms(inputs(step=99), disable_terminal_reward=True).terminal == 0.0


def test_memory_is_all_that_one_step_passes_to_the_next() -> None:
    empty = terms(inputs(seed(alpha=0.9, num_params=500), memory=RewardMemory()))
    assert empty.alpha_shock == 0.0
