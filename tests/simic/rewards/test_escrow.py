"""Escrow: what is paid in advance is kept by fossils only."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simic.rewards.builders import acting, inputs, remembered, result, seed, worth

from esper.leyline.actions import Op
from esper.leyline.rewards import RewardMemory, RewardMode
from esper.leyline.stages import Stage

ESCROW = RewardMode.ESCROW


def credit_after(here) -> float:
    return result(here, ESCROW).memory.slots[0].escrow_credit


def test_credit_moves_towards_the_worth_and_what_moves_is_paid() -> None:
    here = inputs(worth(3.0), memory=remembered(escrow_credit=2.5))
    found = result(here, ESCROW)
    assert found.components.escrow_delta == pytest.approx(0.5)
    assert found.memory.slots[0].escrow_credit == pytest.approx(3.0)


def test_one_step_moves_credit_by_the_clip_at_most() -> None:
    here = inputs(worth(9.0))
    assert result(here, ESCROW).components.escrow_delta == 2.0
    assert result(here, ESCROW, escrow_delta_clip=0.0).components.escrow_delta == 9.0


def test_worth_is_the_geometric_mean_where_progress_is_the_smaller() -> None:
    one = worth(2.0, progress_since_germination_pp=0.5)
    assert credit_after(inputs(one)) == pytest.approx(math.sqrt(0.5 * 2.0))


def test_only_progress_that_has_lasted_is_believed() -> None:
    one = worth(1.0, progress_since_germination_pp=5.0)
    assert credit_after(inputs(one, stable_accuracy_pct=55.0)) == 0.0
    assert credit_after(inputs(one, stable_accuracy_pct=59.0)) == pytest.approx(1.0)


def test_harm_is_charged_and_closes_the_account() -> None:
    found = result(inputs(worth(-1.5), memory=remembered(escrow_credit=2.0)), ESCROW)
    assert found.components.attribution == pytest.approx(-1.5)
    assert found.components.escrow_delta == pytest.approx(-2.0)
    assert found.memory.slots[0].escrow_credit == 0.0


def test_pruning_pays_the_credit_back() -> None:
    here = acting(Op.PRUNE, worth(3.0), memory=remembered(escrow_credit=2.0))
    found = result(here, ESCROW).components
    assert found.escrow_delta == pytest.approx(-2.0)
    assert found.attribution == 0.0


def test_an_unmeasured_seed_keeps_its_credit() -> None:
    here = inputs(seed(), memory=remembered(escrow_credit=1.25))
    assert result(here, ESCROW).components.escrow_delta == 0.0
    assert credit_after(here) == 1.25


def test_credit_of_a_seed_that_is_gone_is_taken_back_once() -> None:
    cooling = seed(stage=Stage.EMBARGOED)
    first = result(inputs(cooling, memory=remembered(escrow_credit=1.5)), ESCROW)
    second = result(inputs(cooling, memory=first.memory), ESCROW)
    assert first.components.escrow_forfeit == -1.5
    assert second.components.escrow_forfeit == 0.0


def test_a_successor_inherits_no_credit() -> None:
    successor = worth(1.0, seed_id="another")
    found = result(inputs(successor, memory=remembered(escrow_credit=1.5)), ESCROW).components
    assert found.escrow_delta == pytest.approx(1.0)
    assert found.escrow_forfeit == pytest.approx(-1.5)


def test_the_end_takes_back_what_is_still_in_play() -> None:
    here = inputs(worth(3.0), step=99, memory=remembered(escrow_credit=3.0))
    assert result(here, ESCROW).components.escrow_forfeit == pytest.approx(-3.0)


@pytest.mark.parametrize(("has_succeeded", "forfeit"), [(True, 0.0), (False, -1.0)])
def test_a_fossil_of_the_last_step_keeps_its_credit(has_succeeded: bool, forfeit: float) -> None:
    here = acting(
        Op.FOSSILIZE,
        worth(1.0),
        has_succeeded=has_succeeded,
        step=99,
        memory=remembered(escrow_credit=1.0),
    )
    assert result(here, ESCROW).components.escrow_forfeit == pytest.approx(forfeit)


lives = st.lists(st.none() | st.floats(-5.0, 12.0), min_size=1, max_size=12)
fates = st.sampled_from(["fossilized", "pruned slowly", "lost", "cut off"])


@settings(max_examples=80, deadline=None)
@given(lives, fates)
def test_what_is_paid_over_a_life_is_what_the_fossil_keeps(life, fate: str) -> None:
    ops = {"fossilized": Op.FOSSILIZE, "pruned slowly": Op.PRUNE}
    num_steps = len(life) + 3
    memory, balance, credit = RewardMemory(), 0.0, 0.0
    for step in range(num_steps):
        is_over = step >= len(life) and fate != "cut off"
        stage = Stage.FOSSILIZED if fate == "fossilized" else Stage.EMBARGOED
        if is_over:
            one, op = seed(stage=stage), Op.WAIT
        else:
            x = life[step] if step < len(life) else None
            one = seed() if x is None else worth(x)
            # A slow prune is decided three steps before the seed is gone.
            decides_at = len(life) - (3 if fate == "pruned slowly" else 1)
            op = ops.get(fate, Op.WAIT) if step == decides_at else Op.WAIT
        here = acting(op, one, step=step, num_steps=num_steps, memory=memory)
        found = result(here, ESCROW)
        balance += found.components.escrow_delta + found.components.escrow_forfeit
        memory = found.memory
        if step == len(life) - 1:
            credit = memory.slots[0].escrow_credit
    assert balance == pytest.approx(credit if fate == "fossilized" else 0.0, abs=1e-9)
