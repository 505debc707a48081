"""Rewards as data: sums of components, look-ups by slot and seed, stages of the seeds."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simic.rewards.builders import acting, inputs, seed

from esper.leyline.actions import Op
from esper.leyline.rewards import RewardComponents, RewardMemory, SlotMemory
from esper.leyline.stages import COOLDOWN_STAGES, Stage

NAMES = RewardComponents.__struct_fields__
components = st.builds(
    RewardComponents, **{name: st.integers(-1000, 1000).map(float) for name in NAMES}
)


@given(st.lists(components, min_size=1, max_size=4))
def test_sum_adds_term_by_term_and_totals_agree(parts: list[RewardComponents]) -> None:
    joined = RewardComponents.sum_of(*parts)

    for name in NAMES:
        assert getattr(joined, name) == sum(getattr(part, name) for part in parts)
    # The terms are whole numbers, so that floats add up exactly.
    assert joined.total() == sum(part.total() for part in parts)


def test_each_term_enters_the_total_once() -> None:
    for index, name in enumerate(NAMES):
        assert RewardComponents(**{name: 2.0**index}).total() == 2.0**index
    powers = {name: 2.0**index for index, name in enumerate(NAMES)}
    assert RewardComponents(**powers).total() == 2.0 ** len(NAMES) - 1


def test_memory_belongs_to_a_seed_and_not_to_its_slot() -> None:
    slot = SlotMemory(slot_id="r0c0", seed_id="old", alpha=0.5, num_params=3)
    memory = RewardMemory(slots=(slot,))
    assert memory.of("r0c0", "old") is slot
    assert memory.of("r0c0", "new") is None
    assert memory.of("r0c1", "old") is None


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.UNKNOWN])
def test_seed_is_a_fossil_alive_or_in_cooldown(stage: Stage) -> None:
    one = seed(stage=stage)
    kinds = (one.is_fossil, one.is_alive, stage in COOLDOWN_STAGES)
    assert sum(kinds) == 1
    step = inputs(one)
    assert (step.fossils, step.living) == (
        (one,) if one.is_fossil else (),
        (one,) if one.is_alive else (),
    )


def test_op_concerns_the_target_alone() -> None:
    target, other = seed("r0c0"), seed("r0c1")
    step = acting(Op.PRUNE, target, other)
    assert step.target() is target
    assert (step.op_on(target), step.op_on(other)) == (Op.PRUNE, Op.WAIT)
    assert inputs(target, other).target() is None


@pytest.mark.parametrize(("step", "is_last"), [(0, False), (98, False), (99, True)])
def test_last_step_is_the_one_before_the_length(step: int, is_last: bool) -> None:
    assert inputs(step=step, num_steps=100).is_last_step is is_last


def test_inputs_survive_the_wire() -> None:
    step = acting(Op.FOSSILIZE, seed(contribution_pp=1.0), val_loss=math.pi)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=type(step)) == step
