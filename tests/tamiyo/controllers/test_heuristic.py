"""The heuristic: when it plants, what it keeps, what it prunes, and what it plants next."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.messages import make_report, make_signals
from tests.tamiyo.controllers.situations import (
    RULES,
    assert_legal,
    chosen,
    evidence_of,
    evidences,
    rules,
    seen,
    situation_of,
)
from tests.tamiyo.states import SLOTS

from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, ActionSpec, Blueprint, Op, Topology
from esper.leyline.alpha import AlphaMode, AlphaState
from esper.leyline.errors import InvalidValueError
from esper.leyline.legality import ActionRules
from esper.leyline.reports import SeedReport
from esper.leyline.signals import TrainingSignals
from esper.leyline.stages import Stage
from esper.tamiyo.controllers.heuristic import ROTATIONS, HeuristicController, HeuristicRules

STUCK = make_signals(is_stabilized=True, plateau_steps=3)
FULL = AlphaState(alpha=1.0, target=1.0)
HALF = AlphaState(alpha=0.5, target=0.5)
RAMPING = AlphaState(alpha=0.4, target=1.0, mode=AlphaMode.UP, steps_total=5, steps_done=2)
NEVER_PATIENT = HeuristicRules(patience_steps=10_000)


def controller_for(heuristic: HeuristicRules = NEVER_PATIENT) -> HeuristicController:
    return HeuristicController(RULES, heuristic)


def decide(
    controller: HeuristicController,
    step: int,
    reports: tuple[SeedReport, ...] = (),
    signals: TrainingSignals = STUCK,
) -> ActionSpec:
    [action] = chosen(controller, evidence_of(0, reports, signals), step=step)
    return action


@settings(max_examples=40)
@given(st.lists(seen, min_size=1, max_size=4), rules, st.integers(0, 12))
def test_only_legal_actions_are_chosen(episode, rules: ActionRules, patience: int) -> None:
    controller = HeuristicController(rules, HeuristicRules(patience_steps=patience))
    controller.begin_round(0)
    for step, shown in enumerate(episode):
        situation = situation_of(*evidences(shown), step=step + 4, rules=rules)
        assert_legal(controller, situation, rules)


# --- Planting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "signals", "op"),
    [
        (5, STUCK, Op.GERMINATE),
        (4, STUCK, Op.WAIT),
        (5, make_signals(is_stabilized=False, plateau_steps=3), Op.WAIT),
        (5, make_signals(is_stabilized=True, plateau_steps=2), Op.WAIT),
    ],
)
def test_a_seed_is_planted_when_a_settled_host_is_stuck(
    step: int, signals: TrainingSignals, op: Op
) -> None:
    assert decide(controller_for(), step, signals=signals).op is op


def test_a_host_that_is_never_stuck_gets_a_seed_when_patience_ends() -> None:
    controller = controller_for(HeuristicRules(patience_steps=4))
    ops = [decide(controller, step, signals=make_signals()).op for step in range(5)]
    assert ops == [Op.WAIT] * 3 + [Op.GERMINATE] * 2
    growing = (make_report(stage=Stage.TRAINING),)
    assert decide(controller, 5, growing, make_signals()).op is Op.ADVANCE
    fossil = (make_report(stage=Stage.FOSSILIZED, alpha=FULL),)
    ops = [decide(controller, step, fossil, make_signals()).op for step in range(6, 10)]
    assert ops == [Op.WAIT] * 3 + [Op.GERMINATE]


def test_the_first_free_slot_is_taken() -> None:
    reports = (make_report("r0c0", Stage.FOSSILIZED, alpha=FULL),)
    assert decide(controller_for(), 9, reports).slot_id == "r0c1"
    fossils = tuple(make_report(slot_id, Stage.FOSSILIZED, alpha=FULL) for slot_id in SLOTS)
    assert decide(controller_for(), 9, fossils).op is Op.WAIT


def test_nothing_is_planted_for_five_steps_after_a_prune() -> None:
    controller = controller_for()
    losing = (make_report(stage=Stage.HOLDING, contribution_pp=0.0, alpha=FULL),)
    assert decide(controller, 10, losing).op is Op.PRUNE
    ops = {step: decide(controller, step).op for step in range(11, 17)}
    assert ops == {step: Op.GERMINATE if step >= 15 else Op.WAIT for step in ops}


# --- Growing seeds -------------------------------------------------------------------------------


def seed(stage: Stage, **facts: object) -> SeedReport:
    alpha = FULL if stage >= Stage.BLENDING else AlphaState()
    return make_report("r0c1", stage, **{"alpha": alpha, **facts})


CASES = {
    "a germinated seed": (seed(Stage.GERMINATED), Op.ADVANCE),
    "a training seed": (seed(Stage.TRAINING), Op.ADVANCE),
    "a training seed whose host drops": (
        seed(
            Stage.TRAINING,
            steps_in_stage=8,
            accuracy_at_stage_start_pct=60.0,
            current_accuracy_pct=20.0,
        ),
        Op.ADVANCE,
    ),
    "a blending seed on its ramp": (seed(Stage.BLENDING, alpha=RAMPING), Op.WAIT),
    "a blending seed at full alpha": (seed(Stage.BLENDING), Op.ADVANCE),
    "a blending seed at half alpha": (seed(Stage.BLENDING, alpha=HALF), Op.WAIT),
    "a blending seed that does harm": (
        seed(Stage.BLENDING, steps_in_stage=5, contribution_pp=-2.1, alpha=HALF),
        Op.PRUNE,
    ),
    "a blending seed that does harm early": (
        seed(Stage.BLENDING, steps_in_stage=4, contribution_pp=-2.1, alpha=HALF),
        Op.WAIT,
    ),
    "a blending seed that does a little harm": (
        seed(Stage.BLENDING, steps_in_stage=5, contribution_pp=-2.0, alpha=HALF),
        Op.WAIT,
    ),
    "a held seed, unmeasured": (seed(Stage.HOLDING), Op.WAIT),
    "a held seed that contributes": (seed(Stage.HOLDING, contribution_pp=0.6), Op.FOSSILIZE),
    "a held seed that does not": (seed(Stage.HOLDING, contribution_pp=0.5), Op.PRUNE),
    "a held seed that holds its host to ransom": (
        seed(
            Stage.HOLDING,
            contribution_pp=9.0,
            accuracy_at_germination_pct=60.0,
            current_accuracy_pct=59.0,
        ),
        Op.PRUNE,
    ),
    "a fossil": (seed(Stage.FOSSILIZED), Op.WAIT),
    "a seed that cools down": (seed(Stage.EMBARGOED), Op.WAIT),
}


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of(name: str) -> None:
    report, op = CASES[name]
    action = decide(controller_for(), 9, (report,), make_signals())
    assert action.op is op
    assert action.slot_id == ("r0c0" if op is Op.WAIT else "r0c1")


def test_a_prune_that_is_not_legal_yet_is_neither_made_nor_remembered() -> None:
    controller = controller_for()
    young = (seed(Stage.HOLDING, contribution_pp=0.0, age_steps=4),)
    assert decide(controller, 10, young).op is Op.WAIT
    assert decide(controller, 11).op is Op.GERMINATE


# --- Rotation ------------------------------------------------------------------------------------


def plantings(controller: HeuristicController, num: int, first_step: int = 20) -> list[Blueprint]:
    actions = [decide(controller, first_step + index) for index in range(num)]
    assert all(action.op is Op.GERMINATE for action in actions)
    return [action.blueprint for action in actions]


def test_blueprints_come_in_turn() -> None:
    rotation = ROTATIONS[Topology.CNN]
    assert plantings(controller_for(), 7) == [*rotation, *rotation[:2]]


def test_a_step_that_cannot_plant_does_not_move_the_rotation() -> None:
    controller = controller_for()
    cooling = (make_report(stage=Stage.EMBARGOED),)
    assert [decide(controller, step, cooling).op for step in range(6, 9)] == [Op.WAIT] * 3
    assert plantings(controller, 1) == [ROTATIONS[Topology.CNN][0]]


def pruned(controller: HeuristicController, step: int, blueprint: Blueprint) -> None:
    losing = seed(Stage.HOLDING, contribution_pp=0.0, blueprint=blueprint)
    assert decide(controller, step, (losing,)).op is Op.PRUNE


UNFORGIVING = HeuristicRules(
    patience_steps=10_000, embargo_steps=0, penalty_decay=1.0, skip_penalty=3.0
)


def test_a_blueprint_that_failed_twice_is_passed_over() -> None:
    rotation = ROTATIONS[Topology.CNN]
    controller = controller_for(UNFORGIVING)
    pruned(controller, 6, rotation[0])
    assert plantings(controller, 1) == [rotation[0]]
    pruned(controller, 7, rotation[1])
    pruned(controller, 8, rotation[1])
    assert plantings(controller, 4) == [*rotation[2:], rotation[0]]


def test_where_all_have_failed_the_least_bad_come_first_and_take_turns() -> None:
    controller = HeuristicController(
        RULES, UNFORGIVING, rotation=(Blueprint.NORM, Blueprint.ATTENTION)
    )
    for step, blueprint in enumerate([Blueprint.NORM] * 3 + [Blueprint.ATTENTION] * 2):
        pruned(controller, step, blueprint)
    assert plantings(controller, 3) == [Blueprint.ATTENTION, Blueprint.NORM, Blueprint.ATTENTION]


def test_a_failure_is_forgiven_by_halves() -> None:
    rules = HeuristicRules(patience_steps=10_000, embargo_steps=0, skip_penalty=0.5)
    rotation = ROTATIONS[Topology.CNN]
    for num_steps, first in ((1, rotation[1]), (2, rotation[1]), (3, rotation[0])):
        controller = controller_for(rules)
        pruned(controller, 6, rotation[0])
        for step in range(7, 6 + num_steps):
            decide(controller, step, signals=make_signals())
        assert plantings(controller, 1) == [first]


def test_a_new_round_starts_with_a_clean_memory() -> None:
    controller, fresh = controller_for(), controller_for()
    pruned(controller, 6, ROTATIONS[Topology.CNN][0])
    plantings(controller, 3)
    controller.begin_round(1)
    assert plantings(controller, 5) == plantings(fresh, 5)


def test_envs_have_memories_of_their_own() -> None:
    controller = controller_for()
    pair = [evidence_of(env_id, (), STUCK) for env_id in range(2)]
    first = chosen(controller, pair[0], None, step=8)
    assert [action.blueprint for action in first] == [ROTATIONS[Topology.CNN][0]]
    second = chosen(controller, *pair, step=9)
    assert [action.blueprint for action in second] == [
        ROTATIONS[Topology.CNN][1],
        ROTATIONS[Topology.CNN][0],
    ]


@pytest.mark.parametrize("topology", Topology)
def test_every_topology_has_a_rotation_that_grows_there(topology: Topology) -> None:
    controller = HeuristicController(ActionRules(slot_ids=SLOTS, topology=topology))
    assert controller.rotation is not None
    assert set(controller.rotation) <= set(BLUEPRINTS_BY_TOPOLOGY[topology])


@pytest.mark.parametrize(
    ("rotation", "message"),
    [((Blueprint.LORA,), "does not grow in a cnn host"), ((), "must name a blueprint")],
)
def test_a_rotation_that_cannot_grow_is_refused(
    rotation: tuple[Blueprint, ...], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        HeuristicController(RULES, rotation=rotation)
