"""The basic modes and their drips."""

import pytest
from tests.simic.rewards.builders import acting, inputs, remembered, result, seed, terms, worth

from esper.leyline.actions import Op
from esper.leyline.errors import ContractError
from esper.leyline.rewards import RewardMode
from esper.leyline.stages import Stage

BASIC, PLUS = RewardMode.BASIC, RewardMode.BASIC_PLUS


def test_rent_is_linear_in_what_was_added() -> None:
    one = seed(alpha=1.0, num_params=10_000)
    expected = -0.1 * (0.0039 * 1000 + 10_000) / 500_000
    assert terms(inputs(one), BASIC).rent == pytest.approx(expected)


def test_the_end_pays_for_improvement_since_the_start() -> None:
    gained = {"accuracy_since_start_pp": 20.0}
    assert terms(inputs(step=98, **gained), BASIC).terminal == 0.0
    assert terms(inputs(step=99, **gained), BASIC).terminal == pytest.approx(1.0)


@pytest.mark.parametrize(("steps", "share"), [(1, 0.2), (5, 1.0)])
def test_a_good_fossil_is_paid_at_once(steps: int, share: float) -> None:
    one = worth(3.0, attributed_pp=6.0, steps_in_stage=steps)
    found = terms(acting(Op.FOSSILIZE, one), BASIC).fossilize_bonus
    assert found == pytest.approx(share * (0.3 + 0.5 * 4.0))


@pytest.mark.parametrize(
    ("x", "share", "has_succeeded", "penalty"),
    [
        (3.0, 3.0, False, -0.5),
        (0.5, 0.5, True, -0.2),
        (0.5, -0.5, True, -0.5),
        (0.05, -0.5, True, -0.2),
    ],
)
def test_a_bad_fossil_costs(x, share, has_succeeded, penalty) -> None:
    one = worth(x, attributed_pp=share)
    found = terms(acting(Op.FOSSILIZE, one, has_succeeded=has_succeeded), BASIC)
    assert (found.fossilize_bonus, found.action_shaping) == (0.0, penalty)


def test_an_unmeasured_fossil_counts_as_noncontributing() -> None:
    assert terms(acting(Op.FOSSILIZE, seed()), BASIC).action_shaping == -0.2


def test_plus_pays_a_part_at_once_and_owes_the_rest() -> None:
    one = worth(3.0, attributed_pp=6.0, steps_in_stage=5)
    found = result(acting(Op.FOSSILIZE, one, step=59), PLUS)
    assert found.components.fossilize_bonus == pytest.approx(0.3 * 2.3)
    assert found.memory.slots[0].drip_scale == pytest.approx(0.7 * 2.3 / 40)


def test_a_late_fossil_drips_as_if_it_had_some_steps_left() -> None:
    one = worth(3.0, attributed_pp=6.0, steps_in_stage=5)
    found = result(acting(Op.FOSSILIZE, one, step=98), PLUS)
    assert found.memory.slots[0].drip_scale == pytest.approx(0.7 * 2.3 / 5)


def test_a_refused_fossilization_owes_nothing() -> None:
    one = worth(3.0, steps_in_stage=5)
    found = result(acting(Op.FOSSILIZE, one, has_succeeded=False), PLUS)
    assert found.memory.slots[0].drip_scale == 0.0


@pytest.mark.parametrize(
    ("contribution", "drip"), [(2.0, 0.04), (30.0, 0.1), (-2.0, -0.04), (-30.0, -0.05), (0.0, 0.0)]
)
def test_drips_follow_what_the_fossil_is_worth_now(contribution: float, drip: float) -> None:
    fossil = seed(stage=Stage.FOSSILIZED, contribution_pp=contribution)
    found = result(inputs(fossil, memory=remembered(drip_scale=0.02)), PLUS)
    assert found.components.drip == pytest.approx(drip)
    assert found.memory.slots[0].drip_scale == 0.02


def test_an_unmeasured_dripping_fossil_is_refused() -> None:
    fossil = seed(stage=Stage.FOSSILIZED)
    with pytest.raises(ContractError, match="'r0c0'"):
        terms(inputs(fossil, memory=remembered(drip_scale=0.02)), PLUS)


def test_basic_never_drips() -> None:
    fossil = seed(stage=Stage.FOSSILIZED, contribution_pp=3.0)
    assert terms(inputs(fossil, memory=remembered(drip_scale=0.02)), BASIC).drip == 0.0
