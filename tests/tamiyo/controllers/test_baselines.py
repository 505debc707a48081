"""Controllers that learn nothing."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.messages import make_report
from tests.tamiyo.controllers.situations import (
    RULES,
    assert_legal,
    chosen,
    evidence_of,
    evidences,
    rules,
    seen,
    situation_of,
    steps,
)
from tests.tamiyo.states import SLOTS

from esper.leyline.actions import (
    BLUEPRINTS_BY_TOPOLOGY,
    HEAD_SPECS,
    ActionSpec,
    Blueprint,
    Head,
    Op,
    Topology,
    causal_heads,
)
from esper.leyline.alpha import AlphaMode, AlphaState
from esper.leyline.legality import ActionRules, is_legal
from esper.leyline.reports import SeedReport
from esper.leyline.stages import Stage
from esper.tamiyo.controllers.baselines import (
    PeriodicController,
    RandomController,
    WaitController,
)
from esper.tamiyo.controllers.protocol import Controller

MAKERS: dict[str, Callable[[ActionRules], Controller]] = {
    "wait": WaitController,
    "random": lambda rules: RandomController(rules, seed=1),
    "periodic": PeriodicController,
}
FULL = AlphaState(alpha=1.0, target=1.0)
RAMPING = AlphaState(alpha=0.4, target=1.0, mode=AlphaMode.UP, steps_total=5, steps_done=2)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=40)
@given(shown=seen, rules=rules, step=steps)
def test_only_legal_actions_are_chosen(name: str, shown, rules: ActionRules, step: int) -> None:
    controller = MAKERS[name](rules)
    assert controller.name == name
    controller.begin_round(0)
    assert_legal(controller, situation_of(*evidences(shown), step=step, rules=rules), rules)


def test_waiting_never_does_anything_else() -> None:
    controller = WaitController(RULES)
    assert chosen(controller, evidence_of(), step=5) == [ActionSpec(slot_id=SLOTS[0])]


# --- Random --------------------------------------------------------------------------------------

STATES: dict[str, tuple[SeedReport, ...]] = {
    "empty": (),
    "training": (make_report("r0c1", Stage.TRAINING),),
    "blending": (make_report("r0c1", Stage.BLENDING, alpha=FULL),),
    "holding": (make_report("r0c2", Stage.HOLDING, alpha=FULL),),
    "cooling": (make_report("r0c0", Stage.EMBARGOED),),
}


@pytest.mark.parametrize("state", STATES)
def test_random_covers_every_legal_op_and_slot_evenly_over_ops(state: str) -> None:
    reports, controller = STATES[state], RandomController(RULES, seed=3)
    num_draws = 600
    drawn = [
        action
        for step in range(num_draws)
        for action in chosen(controller, evidence_of(reports=reports), step=step)
    ]
    legal = {
        (op, slot_id)
        for op in Op
        for slot_id in (SLOTS if Head.SLOT in causal_heads(op) else SLOTS[:1])
        if is_legal(ActionSpec(op=op, slot_id=slot_id, blueprint=Blueprint.NORM), reports, RULES)
    }
    assert {(action.op, action.slot_id) for action in drawn} == legal
    num_ops = len({op for op, _ in legal})
    for op in {op for op, _ in legal}:
        share = sum(action.op is op for action in drawn) / num_draws
        assert abs(share - 1 / num_ops) < 0.1


def test_random_draws_every_choice_of_the_heads_that_matter_and_leaves_the_others() -> None:
    reports = (make_report("r0c0", Stage.HOLDING, alpha=FULL),)
    controller = RandomController(RULES, seed=3)
    drawn: dict[Op, list[ActionSpec]] = {op: [] for op in Op}
    for step in range(1500):
        for action in chosen(controller, evidence_of(reports=reports), step=step):
            drawn[action.op].append(action)
    for op in (Op.GERMINATE, Op.PRUNE, Op.SET_ALPHA_TARGET, Op.WAIT, Op.FOSSILIZE):
        for head in set(Head) - {Head.SLOT, Head.OP}:
            values = {getattr(action, head.value) for action in drawn[op]}
            if head not in causal_heads(op):
                is_blueprint = head is Head.BLUEPRINT
                assert values == {Blueprint.NOOP if is_blueprint else HEAD_SPECS[head].neutral}
            elif head is Head.BLUEPRINT:
                assert values == set(BLUEPRINTS_BY_TOPOLOGY[Topology.CNN])
            else:
                assert values == set(HEAD_SPECS[head].choices or ())


def test_random_is_the_same_for_the_same_seed_round_and_step() -> None:
    situation = situation_of(evidence_of(0), evidence_of(1), step=4, round_index=2)
    first, again = (RandomController(RULES, seed=9).choose(situation) for _ in range(2))
    assert first == again
    others = [
        RandomController(RULES, seed=10).choose(situation),
        RandomController(RULES, seed=9).choose(
            situation_of(evidence_of(0), evidence_of(1), step=4, round_index=3)
        ),
        RandomController(RULES, seed=9).choose(
            situation_of(evidence_of(0), evidence_of(1), step=5, round_index=2)
        ),
    ]
    assert first not in others


@settings(max_examples=30)
@given(seen, steps)
def test_what_random_draws_for_an_env_does_not_depend_on_its_neighbours(shown, step: int) -> None:
    controller, env = RandomController(RULES, seed=5), evidence_of(len(shown))
    alone = controller.choose(situation_of(*[None] * len(shown), env, step=step))
    together = controller.choose(situation_of(*evidences(shown), env, step=step))
    assert alone.actions[-1] == together.actions[-1]


# --- Periodic ------------------------------------------------------------------------------------


def test_periodic_plants_every_few_steps_in_a_fixed_rotation() -> None:
    controller = PeriodicController(RULES, period=3)
    planted = {
        step: action.blueprint
        for step in range(30)
        for action in chosen(controller, evidence_of(), step=step)
        if action.op is Op.GERMINATE
    }
    rotation = BLUEPRINTS_BY_TOPOLOGY[Topology.CNN]
    assert planted == {step: rotation[step // 3 % len(rotation)] for step in range(0, 30, 3)}


@pytest.mark.parametrize(
    ("stage", "alpha", "op"),
    [
        (Stage.GERMINATED, AlphaState(), Op.ADVANCE),
        (Stage.TRAINING, AlphaState(), Op.ADVANCE),
        (Stage.BLENDING, RAMPING, Op.WAIT),
        (Stage.BLENDING, FULL, Op.ADVANCE),
        (Stage.HOLDING, FULL, Op.FOSSILIZE),
        (Stage.FOSSILIZED, FULL, Op.WAIT),
        (Stage.EMBARGOED, AlphaState(), Op.WAIT),
    ],
)
def test_periodic_takes_a_seed_as_far_as_gates_let_it(
    stage: Stage, alpha: AlphaState, op: Op
) -> None:
    reports = (make_report("r0c1", stage, alpha=alpha),)
    [action] = chosen(PeriodicController(RULES), evidence_of(reports=reports), step=1)
    assert action.op is op


def test_a_gate_that_stays_closed_holds_up_neither_other_seeds_nor_new_ones() -> None:
    stuck = make_report("r0c0", Stage.HOLDING, alpha=FULL)
    other = make_report("r0c1", Stage.HOLDING, alpha=FULL)
    controller = PeriodicController(RULES, period=4)
    actions = [
        chosen(controller, evidence_of(reports=(stuck, other)), step=step)[0] for step in range(4)
    ]
    assert [(action.op, action.slot_id) for action in actions] == [
        (Op.GERMINATE, "r0c2"),
        (Op.FOSSILIZE, "r0c1"),
        (Op.FOSSILIZE, "r0c0"),
        (Op.FOSSILIZE, "r0c1"),
    ]


@given(st.integers(0, 30))
def test_periodic_decides_for_each_env_by_itself(step: int) -> None:
    controller = PeriodicController(RULES)
    reports = (make_report("r0c1", Stage.TRAINING),)
    both = chosen(controller, evidence_of(0), evidence_of(1, reports), step=step)
    assert both == [
        *chosen(controller, evidence_of(0), step=step),
        *chosen(controller, evidence_of(0, reports), step=step),
    ]
