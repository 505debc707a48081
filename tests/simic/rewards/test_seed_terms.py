"""What one seed adds to the dense rewards."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simic.rewards.builders import acting, inputs, result, seed, terms, worth

from esper.leyline.actions import Op
from esper.leyline.errors import ContractError
from esper.leyline.rewards import (
    AttributionFormula,
    HackingPattern,
    RewardComponents,
    RewardConfig,
    RewardMode,
)
from esper.leyline.stages import Stage
from esper.simic.rewards.seed_terms import attribution_discount, ratio_penalty, timing_discount

CONFIG = RewardConfig()
PER_SEED = ("attribution", "ratio_penalty", "blending_warning", "holding_warning", "synergy")

points = st.floats(-20.0, 20.0)
alive = st.sampled_from([Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])


def measured_seeds(slot_id: str):
    return st.builds(
        lambda x, share, progress, stage, steps, interaction: seed(
            slot_id,
            stage,
            contribution_pp=x,
            attributed_pp=share,
            progress_since_germination_pp=progress,
            steps_in_stage=steps,
            interaction_sum_pp=interaction,
        ),
        points,
        points,
        st.none() | points,
        alive,
        st.integers(0, 12),
        st.none() | points,
    )


@settings(max_examples=60, deadline=None)
@given(measured_seeds("r0c0"), measured_seeds("r0c1"), st.sampled_from(["r0c0", "r0c1", None]))
def test_every_living_seed_is_paid_by_itself_whichever_is_acted_on(first, second, target) -> None:
    op = Op.WAIT if target is None else Op.PRUNE
    here = {"op": op, "target_slot": target}
    together = terms(inputs(first, second, **here))
    alone = RewardComponents.sum_of(*(terms(inputs(one, **here)) for one in (first, second)))
    for name in PER_SEED:
        assert getattr(together, name) == pytest.approx(getattr(alone, name))


@settings(max_examples=60, deadline=None)
@given(measured_seeds("r0c0"), st.sampled_from(Op))
def test_ratio_penalty_is_a_penalty_for_every_op(one, op: Op) -> None:
    assert terms(acting(op, one)).ratio_penalty <= 0.0


@settings(max_examples=60, deadline=None)
@given(
    measured_seeds("r0c0"),
    st.sampled_from(Op),
    st.floats(21.0, 60.0),
    st.floats(21.0, 60.0),
    points,
)
def test_rewards_for_a_fixed_counterfactual_do_not_move_with_the_host(
    one, op: Op, progress: float, drifted: float, stage_improvement: float
) -> None:
    seeds = [
        msgspec.structs.replace(
            one, progress_since_germination_pp=value, stage_improvement_pp=improvement
        )
        for value, improvement in ((progress, 0.0), (drifted, stage_improvement))
    ]
    first, second = (terms(acting(op, item)) for item in seeds)
    assert first == second


@settings(max_examples=40, deadline=None)
@given(measured_seeds("r0c0"), st.sampled_from(Op), points, points)
def test_gates_of_the_reward_never_look_at_host_drift(one, op: Op, first, second) -> None:
    found = [
        terms(acting(op, msgspec.structs.replace(one, progress_since_germination_pp=progress)))
        for progress in (first, second)
    ]
    for name in ("ratio_penalty", "blending_warning", "action_shaping", "fossilize_bonus"):
        assert getattr(found[0], name) == getattr(found[1], name)


@pytest.mark.parametrize(
    ("x", "progress", "paid"),
    [
        (2.0, 5.0, 2.0),  # contribution is the smaller: paid in full
        (6.0, 3.0, 4.0),  # progress is the smaller: harmonic mean of 3 and 6
        (2.0, None, 1.0),  # progress unknown: half
        (2.0, 0.0, 0.0),  # no progress: nothing
        (2.0, -3.0, 0.0),
        (-2.0, 5.0, -2.0),  # harm counts in full
    ],
)
def test_attribution_joins_contribution_and_progress(x, progress, paid) -> None:
    one = worth(x, progress_since_germination_pp=progress, attributed_pp=abs(x))
    assert terms(inputs(one)).attribution == pytest.approx(paid)


def test_the_minimum_formula_pays_the_progress() -> None:
    one = worth(6.0, progress_since_germination_pp=3.0)
    paid = terms(inputs(one), attribution_formula=AttributionFormula.MINIMUM).attribution
    assert paid == pytest.approx(3.0)


def test_pruning_costs_what_the_seed_earned() -> None:
    assert terms(acting(Op.PRUNE, worth(2.0))).attribution == pytest.approx(-2.0)
    assert terms(acting(Op.PRUNE, worth(-2.0))).attribution == pytest.approx(2.0)


def test_fossilizing_a_seed_with_a_loss_as_its_share_earns_no_attribution() -> None:
    one = worth(3.0, attributed_pp=-0.1)
    assert terms(acting(Op.FOSSILIZE, one)).attribution == 0.0
    assert terms(inputs(one)).attribution > 0.0


def test_a_share_below_zero_discounts_by_a_sigmoid() -> None:
    assert attribution_discount(0.0, CONFIG) == 1.0
    assert attribution_discount(-1.0, CONFIG) == pytest.approx(1.0 / (1.0 + math.exp(3.0)))
    assert attribution_discount(-1e9, CONFIG) == pytest.approx(0.0)


@pytest.mark.parametrize(("step", "share"), [(0, 0.4), (5, 0.7), (10, 1.0), (40, 1.0)])
def test_a_seed_that_starts_early_is_paid_a_share(step: int, share: float) -> None:
    assert timing_discount(step, CONFIG) == pytest.approx(share)
    one = worth(2.0, age_steps=3)
    assert terms(inputs(one, step=step + 3)).attribution == pytest.approx(2.0 * share)


@pytest.mark.parametrize(
    ("x", "share", "penalty"),
    [
        (1.0, 0.05, 0.0),  # too small to matter
        (5.0, 1.0, 0.0),  # exactly at the ratio
        (10.0, 1.0, -0.1),  # twice the ratio
        (30.0, 1.0, -0.3),  # capped
        (5.0, 0.1, -0.15),  # no share to speak of: half of ten points
        (50.0, 0.0, -0.3),
    ],
)
def test_ratio_penalty_by_contribution_and_share(x, share, penalty) -> None:
    assert ratio_penalty(x, share, CONFIG) == pytest.approx(penalty)


def test_anti_gaming_can_be_switched_off() -> None:
    one = worth(10.0, attributed_pp=0.05)
    assert terms(inputs(one)).ratio_penalty < 0.0
    assert terms(inputs(one), disable_anti_gaming=True).ratio_penalty == 0.0


def test_an_unmeasured_seed_is_paid_a_careful_proxy_once_it_blends() -> None:
    for stage, paid in ((Stage.TRAINING, 0.0), (Stage.BLENDING, 0.6)):
        one = seed(stage=stage, stage_improvement_pp=2.0)
        assert terms(inputs(one)).attribution == pytest.approx(paid)
    falling = seed(stage=Stage.BLENDING, stage_improvement_pp=-2.0)
    assert terms(inputs(falling)).attribution == 0.0


def test_fossils_and_cooling_slots_earn_no_attribution() -> None:
    for stage in (Stage.FOSSILIZED, Stage.PRUNED, Stage.EMBARGOED):
        assert terms(inputs(worth(5.0, stage=stage))).attribution == 0.0


def test_a_contribution_without_a_share_is_refused() -> None:
    one = seed(contribution_pp=2.0)
    with pytest.raises(ContractError, match="'r0c0'"):
        terms(inputs(one))


@pytest.mark.parametrize(("steps", "warning"), [(0, -0.1), (2, -0.2), (6, -0.4), (60, -0.4)])
def test_a_harmful_seed_is_warned_while_it_blends(steps: int, warning: float) -> None:
    one = worth(1.0, stage=Stage.BLENDING, attributed_pp=-1.0, steps_in_stage=steps)
    assert terms(inputs(one)).blending_warning == pytest.approx(warning)


@pytest.mark.parametrize(("steps", "warning"), [(1, 0.0), (2, -0.1), (4, -0.2), (60, -0.3)])
def test_a_good_seed_that_is_held_too_long_is_warned(steps: int, warning: float) -> None:
    one = worth(2.0, steps_in_stage=steps)
    assert terms(inputs(one)).holding_warning == pytest.approx(warning)


@pytest.mark.parametrize("op", [Op.WAIT, Op.SET_ALPHA_TARGET])
def test_only_a_decision_about_the_seed_itself_ends_the_warning(op: Op) -> None:
    held, other = worth(2.0, steps_in_stage=4), worth(2.0, "r0c1", steps_in_stage=4)
    assert terms(acting(op, held)).holding_warning < 0.0
    assert terms(acting(Op.FOSSILIZE, held)).holding_warning == 0.0
    both = terms(acting(Op.FOSSILIZE, held, other)).holding_warning
    assert both == terms(inputs(held)).holding_warning


def test_synergy_is_paid_to_believed_seeds_only() -> None:
    good = worth(2.0, interaction_sum_pp=3.0)
    assert terms(inputs(good)).synergy == pytest.approx(0.1 * math.tanh(1.5))
    ransom = worth(2.0, attributed_pp=-1.0, interaction_sum_pp=3.0)
    assert terms(inputs(ransom)).synergy == 0.0
    assert terms(inputs(worth(2.0, interaction_sum_pp=-3.0))).synergy == 0.0


@pytest.mark.parametrize("mode", [RewardMode.SHAPED, RewardMode.ESCROW])
def test_suspicions_name_the_seed_and_the_pattern(mode: RewardMode) -> None:
    honest = worth(5.0, "r0c0")
    inflated = worth(8.0, "r0c1", attributed_pp=1.0)
    ransom = worth(0.5, "r0c2", attributed_pp=-1.0)
    found = result(inputs(honest, inflated, ransom), mode).suspicions
    assert [(item.slot_id, item.pattern) for item in found] == [
        ("r0c1", HackingPattern.ATTRIBUTION_RATIO),
        ("r0c2", HackingPattern.RANSOMWARE),
    ]
    assert (found[0].contribution_pp, found[0].attributed_pp, found[0].threshold) == (8.0, 1.0, 5.0)
