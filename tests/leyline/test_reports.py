"""Reports, alpha and reward components: what they derive from their own fields."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.messages import make_report

from esper.leyline.actions import Op
from esper.leyline.alpha import AlphaMode, AlphaState
from esper.leyline.reports import SeedReport
from esper.leyline.rewards import RewardComponents, RewardInputs, SeedRewardInputs
from esper.leyline.stages import Stage


def report(**fields: Any) -> SeedReport:
    defaults: dict[str, Any] = {
        "stage": Stage.BLENDING,
        "previous_stage": Stage.TRAINING,
        "previous_stage_steps": 10,
        "steps_in_stage": 2,
        "age_steps": 13,
        "germinated_at_step": 4,
    }
    return make_report(**(defaults | fields))


def test_never_measured_stays_never_measured() -> None:
    fresh = report(current_accuracy_pct=50.0)
    assert fresh.improvement_pp is None
    assert fresh.stage_improvement_pp is None


def test_improvements_are_differences_from_their_own_start() -> None:
    seen = report(
        current_accuracy_pct=60.0,
        accuracy_at_germination_pct=40.0,
        accuracy_at_stage_start_pct=55.0,
        accuracy_at_blending_start_pct=60.0,
    )
    assert seen.improvement_pp == 20.0
    assert seen.stage_improvement_pp == 5.0


def test_nothing_is_pending_at_rest() -> None:
    resting = AlphaState(alpha=0.5, target=0.5, steps_total=5, steps_done=0)
    assert resting.steps_to_target == 0
    assert resting.velocity == 0.0
    assert resting.is_at_target


def test_a_ramp_under_way_knows_its_way() -> None:
    ramp = AlphaState(
        alpha=0.8, start=1.0, target=0.0, mode=AlphaMode.DOWN, steps_total=5, steps_done=1
    )
    assert ramp.steps_to_target == 4
    assert ramp.velocity == pytest.approx(-0.2)
    assert not ramp.is_at_target


terms = st.lists(
    st.floats(min_value=-10, max_value=10),
    min_size=len(RewardComponents.__struct_fields__),
    max_size=len(RewardComponents.__struct_fields__),
)


@given(terms)
def test_reward_is_the_sum_of_its_components(values: list[float]) -> None:
    components = RewardComponents(
        **dict(zip(RewardComponents.__struct_fields__, values, strict=True))
    )
    assert components.total() == sum(values)


def inputs(target_slot: str | None, step: int) -> RewardInputs:
    seed = SeedRewardInputs(
        slot_id="r0c1",
        seed_id="s",
        stage=Stage.HOLDING,
        steps_in_stage=1,
        age_steps=20,
        alpha=1.0,
        num_params=17,
    )
    return RewardInputs(
        op=Op.WAIT,
        target_slot=target_slot,
        step=step,
        num_steps=40,
        val_accuracy_pct=50.0,
        val_loss=1.0,
        stable_accuracy_pct=49.0,
        host_params=100,
        seeds=(seed,),
    )


def test_reward_inputs_find_the_target_seed_and_the_last_step() -> None:
    assert inputs(None, 38).target() is None
    assert inputs("r0c0", 38).target() is None
    found = inputs("r0c1", 38).target()
    assert found is not None
    assert found.slot_id == "r0c1"
    assert not inputs(None, 38).is_last_step
    assert inputs(None, 39).is_last_step
