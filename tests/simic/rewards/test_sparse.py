"""The modes that speak at the end of an episode."""

import pytest
from tests.simic.rewards.builders import acting, inputs, result, seed, terms

from esper.leyline.actions import Op
from esper.leyline.errors import ContractError
from esper.leyline.rewards import RewardMode
from esper.leyline.stages import Stage

SPARSE, MINIMAL, SIMPLIFIED = RewardMode.SPARSE, RewardMode.MINIMAL, RewardMode.SIMPLIFIED


@pytest.mark.parametrize("mode", [SPARSE, MINIMAL])
def test_nothing_is_paid_before_the_last_step(mode: RewardMode) -> None:
    assert result(inputs(seed(), step=98), mode).total == 0.0


@pytest.mark.parametrize("mode", [SPARSE, MINIMAL])
def test_the_end_pays_for_committed_accuracy_less_the_fossils_size(mode: RewardMode) -> None:
    seeds = [
        seed("r0c0", Stage.FOSSILIZED, num_params=100_000),
        seed("r0c1", Stage.HOLDING, num_params=900_000),
    ]
    here = inputs(*seeds, step=99, committed_accuracy_pct=70.0, val_accuracy_pct=90.0)
    assert result(here, mode).total == pytest.approx(0.7 - 0.1 * 0.2)


def test_the_value_is_clipped() -> None:
    giant = seed(stage=Stage.FOSSILIZED, num_params=10**9)
    assert result(inputs(giant, step=99), SPARSE).total == -1.0


def test_an_unmeasured_end_is_refused() -> None:
    with pytest.raises(ContractError, match="step 99"):
        terms(inputs(step=99, committed_accuracy_pct=None), SPARSE)


@pytest.mark.parametrize(("age", "cost"), [(5, -0.1), (9, -0.1), (10, 0.0)])
def test_minimal_charges_for_an_early_prune_that_is_legal(age: int, cost: float) -> None:
    here = acting(Op.PRUNE, seed(stage=Stage.TRAINING, age_steps=age))
    assert result(here, MINIMAL).total == cost
    assert result(here, SPARSE).total == 0.0


def test_simplified_charges_for_acting() -> None:
    assert terms(acting(Op.ADVANCE, seed()), SIMPLIFIED).action_shaping == -0.01
    assert terms(inputs(seed()), SIMPLIFIED).action_shaping == 0.0


def test_simplified_counts_fossils_by_their_counterfactual_contribution() -> None:
    fossils = [
        seed("r0c0", Stage.FOSSILIZED, contribution_pp=1.0),
        seed("r0c1", Stage.FOSSILIZED, contribution_pp=0.9, progress_since_germination_pp=40.0),
        seed("r0c2", Stage.FOSSILIZED),
    ]
    found = terms(inputs(*fossils, step=99), SIMPLIFIED).terminal
    assert found == pytest.approx(3.0 * 0.6 + 2.0 * 1)


def test_simplified_can_pay_for_what_the_fossils_achieve_instead_of_their_number() -> None:
    here = inputs(
        seed("r0c0", Stage.FOSSILIZED, contribution_pp=1.5),
        seed("r0c1", Stage.FOSSILIZED, contribution_pp=30.0),
        step=99,
        val_accuracy_pct=80.0,
        committed_accuracy_pct=70.0,
    )
    weights = {"simplified_accuracy_weight": 0.0, "simplified_fossil_bonus": 0.0}
    found = terms(here, SIMPLIFIED, simplified_committed_weight=10.0, **weights)
    assert found.terminal == pytest.approx(7.0)
    assert terms(here, SIMPLIFIED).terminal == pytest.approx(3.0 * 0.8 + 2.0 * 2)


def test_simplified_refuses_an_unmeasured_end_only_if_it_is_paid_for() -> None:
    here = inputs(step=99, committed_accuracy_pct=None)
    assert terms(here, SIMPLIFIED).terminal == pytest.approx(3.0 * 0.6)
    with pytest.raises(ContractError, match="step 99"):
        terms(here, SIMPLIFIED, simplified_committed_weight=1.0)
