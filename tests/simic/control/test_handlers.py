"""Op handlers on real bodies: what is legal is carried out, and only causal heads matter."""

import itertools
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.messages import env_evidence, make_signals
from tests.kasmina.bodies import CNN, disturb, generator, grown, inputs, lead, plant
from tests.simic.training.envs import EAGER, HEALTHY, SLOTS, World, world_of
from tests.tamiyo.test_masks import masks_allow

from esper.kasmina.lifecycle import tick
from esper.kasmina.model import MorphogeneticModel
from esper.leyline.actions import (
    BLUEPRINTS_BY_TOPOLOGY,
    HEAD_SPECS,
    ActionSpec,
    AlphaSpeed,
    AlphaTarget,
    Blueprint,
    CurveChoice,
    Head,
    Op,
    Style,
    Tempo,
    Topology,
    causal_heads,
)
from esper.leyline.legality import is_legal
from esper.leyline.messages import EnvOutcome, StepDecision
from esper.leyline.stages import LifecycleRules, Stage
from esper.simic.control.context import HandlerContext
from esper.simic.control.handlers import HANDLERS
from esper.simic.training.action_execution import apply_decision

GRADIENTS = (
    None,
    HEALTHY,
    msgspec.structs.replace(HEALTHY, health=0.1),
    msgspec.structs.replace(HEALTHY, has_exploding=True),
)
BLUEPRINTS = BLUEPRINTS_BY_TOPOLOGY[Topology.CNN]

actions = st.builds(
    ActionSpec,
    op=st.sampled_from(Op),
    slot_id=st.sampled_from(SLOTS),
    blueprint=st.sampled_from([*BLUEPRINTS, Blueprint.NOOP, Blueprint.LORA]),
    style=st.sampled_from(Style),
    tempo=st.sampled_from(Tempo),
    alpha_target=st.sampled_from(AlphaTarget),
    alpha_speed=st.sampled_from(AlphaSpeed),
    alpha_curve=st.sampled_from(CurveChoice),
)
SLOWER = LifecycleRules(min_training_steps=2, min_prune_age_steps=5, embargo_steps=1)
STRICT = LifecycleRules(
    permissive=False, min_training_steps=1, min_blending_steps=1, embargo_steps=2
)
NUM_WALKS, WALK_STEPS = 12, 45


def measure(world: World, random: Random) -> None:
    """Let the seeds be measured as passes would, well or badly."""
    for slot in world.env.model.all_slots():
        if slot.state is not None:
            slot.record_accuracy(random.uniform(0, 100))
            slot.record_contribution(random.uniform(-2, 4))
            gradient = random.choice([*GRADIENTS, HEALTHY, HEALTHY])
            if gradient is not None:
                slot.record_gradient(gradient)


def execute(world: World, action: ActionSpec) -> EnvOutcome:
    env = world.env
    env.evidence = env_evidence(0, 0, signals=make_signals(), reports=env.reports)
    decision = StepDecision(
        round=0,
        step=0,
        is_last_step=False,
        actions=(action,),
        details=(None,),
        previous_rewards=(None,),
    )
    return apply_decision(env, decision, world.work.action_rules)


def drawn(random: Random) -> ActionSpec:
    return ActionSpec(
        op=random.choice(list(Op)),
        slot_id=random.choice(SLOTS),
        blueprint=random.choice([*BLUEPRINTS, Blueprint.NOOP, Blueprint.LORA]),
        style=random.choice(list(Style)),
        tempo=random.choice(list(Tempo)),
        alpha_target=random.choice(list(AlphaTarget)),
        alpha_speed=random.choice(list(AlphaSpeed)),
        alpha_curve=random.choice(list(CurveChoice)),
    )


def test_an_action_is_carried_out_exactly_when_it_is_legal_and_its_gate_lets_it() -> None:
    random, reached, tried = Random(0), set[Stage](), set[tuple[Op, bool]]()
    runs = itertools.product([EAGER, SLOWER, STRICT], [None, 2], range(NUM_WALKS))
    for lifecycle, max_seeds, _ in runs:
        world = world_of(lifecycle=lifecycle, max_seeds=max_seeds)
        for _ in range(WALK_STEPS):
            measure(world, random)
            action = likely_legal(world, random) if random.random() < 0.7 else drawn(random)
            tried.add((action.op, check_action(world, action)))
            reached |= {report.stage for report in world.env.reports}
    assert reached == {stage for stage in Stage if stage >= Stage.GERMINATED}
    assert {op for op, is_tried_legally in tried if is_tried_legally} == set(Op)
    assert {op for op, is_tried_legally in tried if not is_tried_legally} == set(Op) - {Op.WAIT}


def likely_legal(world: World, random: Random) -> ActionSpec:
    """Return an action that is legal if a few tries find one, so that walks get somewhere."""
    tries = [drawn(random) for _ in range(12)]
    # Pruning is nearly always legal and would end every life early.
    wanted = [action for action in tries if action.op not in {Op.WAIT, Op.PRUNE}]
    legal = [
        action for action in wanted if is_legal(action, world.env.reports, world.work.action_rules)
    ]
    return (legal or tries)[0]


def check_action(world: World, action: ActionSpec) -> bool:
    """Execute an action, compare with the rules, and return whether it was legal."""
    model, rules, reports = world.env.model, world.work.action_rules, world.env.reports
    expected = is_legal(action, reports, rules)
    after_a_tick = [tick(slot.state, model.rules).state for slot in model.all_slots()]
    assert masks_allow(world.work.masker.masks([reports]), 0, action) is expected
    done = execute(world, action).outcome
    assert (done.veto_reason is None) is expected
    assert done.effective_op is (action.op if expected else Op.WAIT)
    if not expected:
        assert not done.succeeded
    elif not done.succeeded:
        assert done.failure_reason is not None
        assert done.failure_reason.startswith("gate ")
    if not done.succeeded:
        assert [slot.state for slot in model.all_slots()] == after_a_tick
    return expected


@settings(max_examples=25)
@given(st.lists(actions, min_size=10, max_size=30))
def test_a_handler_refuses_nothing_that_is_legal_and_what_it_refuses_is_illegal(
    walk: list[ActionSpec],
) -> None:
    world, random = world_of(), Random(1)
    for count, action in enumerate(walk):
        if action.op is Op.GERMINATE and action.blueprint not in BLUEPRINTS:
            continue
        measure(world, random)
        expected = is_legal(action, world.env.reports, world.work.action_rules)
        refusal = HANDLERS[action.op](action, context_of(world.env.model, f"s{count}")).refusal
        is_refused = refusal is not None and not refusal.startswith("gate ")
        # Room for another seed is for the rules to judge; a slot knows nothing of its neighbours.
        if action.op is Op.GERMINATE:
            assert not (is_refused and expected)
        else:
            assert is_refused is not expected
        world.env.model.tick()


def context_of(model: MorphogeneticModel, seed_id: str = "s") -> HandlerContext:
    return HandlerContext(
        model=model, seed_id=seed_id, generator=generator(2), accuracy_pct=61.0, step=7
    )


# --- Heads ---------------------------------------------------------------------------------------

PLANTED = {
    Op.WAIT: Stage.BLENDING,
    Op.SET_ALPHA_TARGET: Stage.BLENDING,
    Op.PRUNE: Stage.HOLDING,
    Op.FOSSILIZE: Stage.HOLDING,
    Op.ADVANCE: Stage.TRAINING,
}
"""The stage of the two seeds that an op is tried on; GERMINATE is tried on none."""
NUM_TICKS = 9


def effect_of(action: ActionSpec) -> tuple[object, ...]:
    """Return what an action does: the stages and outputs of the steps that follow it."""
    model = grown(CNN, slot_ids=SLOTS).eval()
    if action.op is not Op.GERMINATE:
        for slot_id in SLOTS[:2]:
            plant(model.slot(slot_id), PLANTED[action.op], seed_id=slot_id)
            disturb(model.slot(slot_id))
    outcome = HANDLERS[action.op](action, context_of(model))
    assert outcome.succeeded, outcome.refusal
    if action.op is Op.GERMINATE:
        slot = model.slot(action.slot_id)
        disturb(slot)
        lead_to_the_ramp(model, action.slot_id)
    seen: list[object] = []
    for _ in range(NUM_TICKS):
        with torch.no_grad():
            output = model(inputs())
        seen.append((tuple(_stages(model)), output.numpy().tobytes()))
        model.tick()
    return tuple(seen)


def lead_to_the_ramp(model: MorphogeneticModel, slot_id: str) -> None:
    slot = model.slot(slot_id)
    lead(slot, Stage.TRAINING)
    assert slot.advance().succeeded


def _stages(model: MorphogeneticModel) -> list[Stage | None]:
    return [slot.state and slot.state.stage for slot in model.all_slots()]


def base_action(op: Op) -> ActionSpec:
    # A ramp of several steps shows its curve, and one to 1 shows its length.
    blueprint = Blueprint.CONV_LIGHT if op is Op.GERMINATE else Blueprint.NOOP
    return ActionSpec(op=op, slot_id=SLOTS[0], blueprint=blueprint, alpha_speed=AlphaSpeed.SLOW)


def variants(op: Op, head: Head) -> list[ActionSpec]:
    base = base_action(op)
    if head is Head.SLOT:
        slot_ids = SLOTS if op is Op.GERMINATE else SLOTS[:2]
        return [msgspec.structs.replace(base, slot_id=slot_id) for slot_id in slot_ids]
    choices: Any = HEAD_SPECS[head].choices
    if head is Head.BLUEPRINT:
        choices = BLUEPRINTS
    return [msgspec.structs.replace(base, **{head.value: choice}) for choice in choices]


PAIRS = [(op, head) for op in Op for head in Head if head is not Head.OP]
causal = pytest.mark.parametrize(
    ("op", "head"), [(op, head) for op, head in PAIRS if head in causal_heads(op)]
)
idle = pytest.mark.parametrize(
    ("op", "head"), [(op, head) for op, head in PAIRS if head not in causal_heads(op)]
)


@causal
def test_every_choice_of_a_causal_head_does_something_else(op: Op, head: Head) -> None:
    effects = [effect_of(action) for action in variants(op, head)]
    assert len(set(effects)) == len(effects)


@idle
def test_no_choice_of_another_head_changes_anything(op: Op, head: Head) -> None:
    assert len({effect_of(action) for action in variants(op, head)}) == 1


@pytest.mark.parametrize("op", [op for op in Op if op not in {Op.WAIT, Op.GERMINATE}])
def test_every_op_does_something_that_waiting_does_not(op: Op) -> None:
    model_stage = PLANTED[op]
    waiting = _effect_from(model_stage, ActionSpec(slot_id=SLOTS[0]))
    assert _effect_from(model_stage, base_action(op)) != waiting


def _effect_from(stage: Stage, action: ActionSpec) -> object:
    model = grown(CNN, slot_ids=SLOTS).eval()
    plant(model.slot(SLOTS[0]), stage)
    HANDLERS[action.op](action, context_of(model))
    seen = []
    for _ in range(NUM_TICKS):
        seen.append(tuple(_stages(model)))
        model.tick()
    return (*seen, *(report.alpha for report in model.reports().values()))


def test_there_is_a_handler_for_every_op() -> None:
    assert set(HANDLERS) == set(Op)


def test_germinating_plants_what_the_action_names() -> None:
    model = grown(CNN, slot_ids=SLOTS)
    action = ActionSpec(
        op=Op.GERMINATE,
        slot_id="r0c1",
        blueprint=Blueprint.DEPTHWISE,
        style=Style.GATED_GATE,
        tempo=Tempo.SLOW,
        alpha_target=AlphaTarget.SEVENTY,
    )
    assert HANDLERS[action.op](action, context_of(model, "ep3_env1_seed_0")).succeeded
    [seed] = [slot.state for slot in model.all_slots() if slot.state is not None]
    assert (seed.seed_id, seed.blueprint, seed.style) == (
        "ep3_env1_seed_0",
        Blueprint.DEPTHWISE,
        Style.GATED_GATE,
    )
    assert (seed.tempo_steps, seed.alpha_target) == (8, 0.7)
    assert seed.measured.accuracy_at_germination_pct == 61.0
    assert (seed.germinated_at_step, seed.fossilized_at_step) == (7, None)
    assert model.slot("r0c1").gate is not None


def test_a_retarget_keeps_the_seeds_algorithm_whatever_the_style_says() -> None:
    model = grown(CNN, slot_ids=SLOTS)
    plant(model.slot("r0c0"), Stage.HOLDING, style=Style.LINEAR_MULTIPLY)
    action = ActionSpec(
        op=Op.SET_ALPHA_TARGET,
        slot_id="r0c0",
        style=Style.GATED_GATE,
        alpha_target=AlphaTarget.HALF,
    )
    assert HANDLERS[action.op](action, context_of(model)).succeeded
    report = model.reports()["r0c0"]
    assert report.algorithm is Style.LINEAR_MULTIPLY.algorithm
    assert report.alpha.alpha == 0.5


def test_a_prune_with_a_ramp_takes_its_steps_and_then_removes_the_seed() -> None:
    model = grown(CNN, slot_ids=SLOTS)
    plant(model.slot("r0c0"), Stage.HOLDING)
    action = ActionSpec(op=Op.PRUNE, slot_id="r0c0", alpha_speed=AlphaSpeed.FAST)
    assert HANDLERS[action.op](action, context_of(model)).succeeded
    stages = []
    for _ in range(3):
        stages.append(_stages(model)[0])
        model.tick()
    assert stages == [Stage.BLENDING] * 3
    assert _stages(model)[0] is Stage.PRUNED
