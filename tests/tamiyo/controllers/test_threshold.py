"""A threshold rule judges seeds by age and contribution, and plants in its own time."""

import msgspec
import pytest
from tests.builders.messages import make_report
from tests.tamiyo.controllers.situations import RULES, chosen, evidence_of
from tests.tamiyo.states import SLOTS

from esper.leyline.actions import ActionSpec, AlphaTarget, Blueprint, Op, Style
from esper.leyline.alpha import AlphaState
from esper.leyline.reports import SeedReport
from esper.leyline.schedules import ThresholdRule
from esper.leyline.stages import Stage
from esper.tamiyo.controllers.threshold import ThresholdController

RULE = ThresholdRule(
    slots=(SLOTS[1], SLOTS[0]),
    blueprint="conv_small",
    style="gated_gate",
    first_step=3,
    last_step=5,
    after_steps=8,
    keep_above_pp=2.0,
    prune_below_pp=-1.0,
)
WAIT = ActionSpec(slot_id=SLOTS[0])


def decided(*reports: SeedReport, step: int = 20, rule: ThresholdRule = RULE) -> ActionSpec:
    (action,) = chosen(ThresholdController(RULES, rule), evidence_of(0, reports), step=step)
    return action


def held(
    slot_id: str = SLOTS[0], *, contribution_pp: float | None, age_steps: int = 40
) -> SeedReport:
    return make_report(
        slot_id=slot_id,
        stage=Stage.HOLDING,
        alpha=AlphaState(alpha=1.0, target=1.0),
        contribution_pp=contribution_pp,
        age_steps=age_steps,
    )


@pytest.mark.parametrize(
    ("contribution_pp", "op"),
    [(2.0, Op.FOSSILIZE), (1.9, Op.WAIT), (-1.0, Op.WAIT), (-1.1, Op.PRUNE), (None, Op.WAIT)],
)
def test_contribution_decides_what_becomes_of_a_seed(contribution_pp: float | None, op: Op) -> None:
    assert decided(held(contribution_pp=contribution_pp)).op is op


@pytest.mark.parametrize(("age_steps", "op"), [(7, Op.WAIT), (8, Op.FOSSILIZE)])
def test_young_seeds_are_not_judged(age_steps: int, op: Op) -> None:
    assert decided(held(contribution_pp=9.0, age_steps=age_steps)).op is op


def test_what_harms_is_removed_before_anything_is_kept() -> None:
    good, bad = held(SLOTS[0], contribution_pp=9.0), held(SLOTS[1], contribution_pp=-9.0)

    assert decided(good, bad) == ActionSpec(op=Op.PRUNE, slot_id=SLOTS[1])


@pytest.mark.parametrize("step", [2, 3, 5, 6])
def test_it_plants_between_its_first_and_last_step(step: int) -> None:
    expected = ActionSpec(
        op=Op.GERMINATE,
        slot_id=SLOTS[1],
        blueprint=Blueprint.CONV_SMALL,
        style=Style.GATED_GATE,
    )
    assert decided(step=step) == (expected if 3 <= step <= 5 else WAIT)


def test_it_plants_in_the_next_slot_when_one_is_taken() -> None:
    taken = held(SLOTS[1], contribution_pp=None)

    assert decided(taken, step=4).slot_id == SLOTS[0]
    alone = msgspec.structs.replace(RULE, slots=(SLOTS[1],))
    assert decided(taken, step=4, rule=alone) == WAIT


@pytest.mark.parametrize(("target", "step"), [(0.5, 29), (0.5, 30), (1.0, 30), (0.0, 30)])
def test_seeds_that_run_in_part_come_to_full_alpha_from_a_step_on(target: float, step: int) -> None:
    rule = msgspec.structs.replace(RULE, whole_from=30)
    seed = msgspec.structs.replace(
        held(contribution_pp=0.0), alpha=AlphaState(alpha=target, target=target)
    )
    whole = ActionSpec(op=Op.SET_ALPHA_TARGET, slot_id=SLOTS[0], alpha_target=AlphaTarget.FULL)

    assert decided(seed, step=step, rule=rule) == (whole if (target, step) == (0.5, 30) else WAIT)


@pytest.mark.parametrize(("step", "target"), [(3, AlphaTarget.HALF), (4, AlphaTarget.FULL)])
def test_it_plants_at_half_alpha_until_seeds_are_whole(step: int, target: AlphaTarget) -> None:
    rule = msgspec.structs.replace(RULE, whole_from=4)

    assert decided(step=step, rule=rule).alpha_target is target
