"""The table of legal actions, against a table of its own."""

import pytest
from tests.builders.messages import make_report
from tests.tamiyo.states import SLOTS

from esper.leyline.actions import ActionSpec, Blueprint, Op, Topology
from esper.leyline.alpha import AlphaMode, AlphaState
from esper.leyline.legality import ActionRules, illegality, is_legal
from esper.leyline.stages import Gate, LifecycleRules, Stage

RULES = ActionRules(slot_ids=SLOTS, topology=Topology.CNN)
LETTERS = {
    Op.WAIT: "W",
    Op.GERMINATE: "G",
    Op.SET_ALPHA_TARGET: "S",
    Op.PRUNE: "P",
    Op.FOSSILIZE: "F",
    Op.ADVANCE: "A",
}

# Legal ops with one occupied slot: too young to prune; old and at rest; old and ramping.
EXPECTED = {
    Stage.GERMINATED: ("WGA", "WGPA", "WGA"),
    Stage.TRAINING: ("WGA", "WGPA", "WGA"),
    Stage.BLENDING: ("WGSA", "WGSPA", "WGA"),
    Stage.HOLDING: ("WGSF", "WGSPF", "WGF"),
    Stage.FOSSILIZED: ("WG", "WG", "WG"),
    Stage.PRUNED: ("W", "W", "W"),
    Stage.EMBARGOED: ("W", "W", "W"),
    Stage.RESETTING: ("W", "W", "W"),
}


def legal_letters(reports, rules=RULES) -> str:
    return "".join(
        letter
        for op, letter in LETTERS.items()
        if any(
            is_legal(ActionSpec(op=op, slot_id=slot, blueprint=Blueprint.NORM), reports, rules)
            for slot in SLOTS
        )
    )


@pytest.mark.parametrize("stage", EXPECTED)
def test_legal_ops_by_stage_age_and_alpha(stage: Stage) -> None:
    cases = ((4, AlphaMode.HOLD), (5, AlphaMode.HOLD), (5, AlphaMode.UP))
    found = tuple(
        legal_letters((make_report(stage=stage, age_steps=age, alpha=AlphaState(mode=mode)),))
        for age, mode in cases
    )
    assert found == EXPECTED[stage]


def test_an_empty_network_can_wait_and_germinate() -> None:
    assert legal_letters(()) == "WG"


def test_germination_needs_an_empty_slot() -> None:
    reports = (make_report(stage=Stage.FOSSILIZED),)
    action = ActionSpec(op=Op.GERMINATE, slot_id="r0c0", blueprint=Blueprint.NORM)
    assert illegality(action, reports, RULES) == "the seed is in stage FOSSILIZED"


def test_the_limit_of_seeds_counts_fossils() -> None:
    rules = ActionRules(slot_ids=SLOTS, topology=Topology.CNN, max_seeds=1)
    action = ActionSpec(op=Op.GERMINATE, slot_id="r0c1", blueprint=Blueprint.NORM)
    reports = (make_report(stage=Stage.FOSSILIZED),)
    assert illegality(action, reports, rules) == "1 seeds are the limit"
    assert is_legal(action, (), rules)


def test_advance_is_no_decision_when_every_gate_is_automatic() -> None:
    lifecycle = LifecycleRules(auto_forward=(Gate.G1, Gate.G2, Gate.G3))
    rules = ActionRules(slot_ids=SLOTS, topology=Topology.CNN, lifecycle=lifecycle)
    assert "A" not in legal_letters((make_report(),), rules)


@pytest.mark.parametrize("blueprint", [Blueprint.NOOP, Blueprint.LORA])
def test_only_blueprints_of_the_hosts_topology_germinate(blueprint: Blueprint) -> None:
    action = ActionSpec(op=Op.GERMINATE, slot_id="r0c0", blueprint=blueprint)
    reason = illegality(action, (), RULES)
    assert reason == f"blueprint {str(blueprint)!r} does not grow in a cnn host"


def test_a_slot_that_is_not_enabled_is_named() -> None:
    reason = illegality(ActionSpec(slot_id="r5c5"), (), RULES)
    assert reason == "slot 'r5c5' is not enabled"
