"""From reports to what a reward sees."""

import pytest
from tests.builders.messages import make_report
from tests.simic.rewards.builders import scheme

from esper.leyline.alpha import AlphaState
from esper.leyline.stages import Stage
from esper.simic.rewards.inputs import memory_at, seed_inputs, slot_stages

REPORT = make_report(
    stage=Stage.HOLDING,
    steps_in_stage=3,
    alpha=AlphaState(alpha=0.7, target=0.7),
    num_params=321,
    accuracy_at_germination_pct=40.0,
    accuracy_at_stage_start_pct=50.0,
    current_accuracy_pct=55.0,
    contribution_pp=2.0,
    steps_since_contribution=0,
    interaction_sum_pp=1.0,
)


def test_a_report_is_carried_over_field_by_field() -> None:
    found = seed_inputs(REPORT, 1.5)
    assert (found.slot_id, found.seed_id, found.stage) == ("r0c0", "a", Stage.HOLDING)
    assert (found.steps_in_stage, found.age_steps) == (3, 6)
    assert (found.alpha, found.num_params) == (0.7, 321)
    assert (found.contribution_pp, found.attributed_pp, found.interaction_sum_pp) == (2.0, 1.5, 1.0)
    assert found.progress_since_germination_pp == 15.0
    assert found.stage_improvement_pp == 5.0


@pytest.mark.parametrize("steps", [1, None])
def test_a_stale_measurement_is_no_measurement_of_this_step(steps: int | None) -> None:
    stale = make_report(contribution_pp=2.0, steps_since_contribution=steps, interaction_sum_pp=1.0)
    found = seed_inputs(stale, 1.5)
    assert (found.contribution_pp, found.attributed_pp, found.interaction_sum_pp) == (None,) * 3


def test_shaping_sees_stage_and_time() -> None:
    assert [(slot.stage, slot.steps_in_stage) for slot in slot_stages([REPORT])] == [
        (Stage.HOLDING, 3)
    ]


def test_a_segments_first_memory_holds_alphas_and_no_credit() -> None:
    memory = memory_at([REPORT], scheme())
    assert memory.potential == pytest.approx(5.5 + 0.9)
    slot = memory.slots[0]
    assert (slot.alpha, slot.num_params, slot.escrow_credit, slot.drip_scale) == (0.7, 321, 0, 0)
