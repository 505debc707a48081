"""Masks say what leyline's rules say, for all envs at once."""

import itertools

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.messages import make_report
from tests.tamiyo.states import SLOTS, envs

from esper.leyline.actions import (
    BLUEPRINTS,
    HEAD_SPECS,
    ActionSpec,
    AlphaTarget,
    Blueprint,
    Head,
    Op,
    Style,
    Topology,
    causal_heads,
)
from esper.leyline.alpha import AlphaMode, AlphaState
from esper.leyline.errors import UnknownNameError
from esper.leyline.legality import ActionRules, is_legal
from esper.leyline.reports import SeedReport
from esper.leyline.stages import COOLDOWN_STAGES, Gate, LifecycleRules, Stage
from esper.tamiyo.mask_types import ActionMasks
from esper.tamiyo.masks import ActionMasker

RULES = ActionRules(slot_ids=SLOTS, topology=Topology.CNN)

rules = st.builds(
    ActionRules,
    slot_ids=st.just(SLOTS),
    topology=st.sampled_from(Topology),
    lifecycle=st.builds(
        LifecycleRules,
        auto_forward=st.sampled_from([(), (Gate.G1,), (Gate.G1, Gate.G2, Gate.G3)]),
        min_prune_age_steps=st.integers(0, 8),
    ),
    max_seeds=st.none() | st.integers(0, 3),
)

actions = st.builds(
    ActionSpec,
    op=st.sampled_from(Op),
    slot_id=st.sampled_from(SLOTS),
    blueprint=st.sampled_from(Blueprint),
    style=st.sampled_from(Style),
    alpha_target=st.sampled_from(AlphaTarget),
)


def _index_of(action: ActionSpec, head: Head) -> int:
    choice = getattr(action, head.value)
    return BLUEPRINTS.index(choice) if head is Head.BLUEPRINT else int(choice)


def masks_allow(masks: ActionMasks, env_index: int, action: ActionSpec) -> bool:
    heads = {
        Head.BLUEPRINT: masks.blueprint,
        Head.STYLE: masks.style,
        Head.TEMPO: masks.tempo,
        Head.ALPHA_TARGET: masks.alpha_target,
        Head.ALPHA_SPEED: masks.alpha_speed,
        Head.ALPHA_CURVE: masks.alpha_curve,
    }
    slot = SLOTS.index(action.slot_id)
    allowed = [
        bool(masks.op[env_index, action.op]),
        bool(masks.slot_by_op[env_index, action.op, slot]),
    ]
    allowed += [
        bool(mask[env_index, _index_of(action, head)])
        for head, mask in heads.items()
        if head in causal_heads(action.op)
    ]
    return all(allowed)


@settings(max_examples=150, deadline=None)
@given(st.lists(envs, min_size=1, max_size=3), rules, st.lists(actions, min_size=8, max_size=8))
def test_mask_legal_is_exactly_legal(
    batch: list[tuple[SeedReport, ...]], rules: ActionRules, actions: list[ActionSpec]
) -> None:
    masks = ActionMasker(rules).masks(batch)
    for (env_index, reports), action in itertools.product(enumerate(batch), actions):
        assert masks_allow(masks, env_index, action) == is_legal(action, reports, rules)


@settings(max_examples=40, deadline=None)
@given(st.lists(envs, min_size=2, max_size=4), rules)
def test_an_envs_masks_do_not_depend_on_its_neighbours(
    batch: list[tuple[SeedReport, ...]], rules: ActionRules
) -> None:
    masker = ActionMasker(rules)
    together = masker.masks(batch)
    for env_index, reports in enumerate(batch):
        alone = masker.masks([reports])
        for name in ActionMasks.__dataclass_fields__:
            assert torch.equal(getattr(together, name)[env_index], getattr(alone, name)[0])


@settings(max_examples=60, deadline=None)
@given(envs, rules)
def test_legal_ops_of_one_env_are_its_row_of_the_op_mask(
    reports: tuple[SeedReport, ...], rules: ActionRules
) -> None:
    masker = ActionMasker(rules)

    assert list(masker.legal_ops(reports)) == masker.masks([reports]).op[0].tolist()


def test_masks_have_the_shapes_the_policy_expects() -> None:
    masks = ActionMasker(RULES).masks([(), ()])
    shapes = {name: tuple(getattr(masks, name).shape) for name in ActionMasks.__dataclass_fields__}
    assert shapes == {
        "op": (2, 6),
        "slot_by_op": (2, 6, 3),
        "blueprint": (2, 13),
        "style": (2, 4),
        "tempo": (2, 3),
        "alpha_target": (2, 3),
        "alpha_speed": (2, 4),
        "alpha_curve": (2, 5),
    }


@settings(max_examples=40, deadline=None)
@given(envs, rules)
def test_wait_is_always_possible_and_every_head_has_a_choice(
    reports: tuple[SeedReport, ...], rules: ActionRules
) -> None:
    masks = ActionMasker(rules).masks([reports])
    assert masks.op[0, Op.WAIT]
    assert masks.slot_by_op[0, Op.WAIT].all()
    for name in ("blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve"):
        assert getattr(masks, name).any(dim=1).all()


def test_style_is_open_only_while_something_can_germinate() -> None:
    parked = make_report(stage=Stage.BLENDING, alpha=AlphaState(alpha=0.5, target=0.5))
    cooling = make_report("r0c1", Stage.EMBARGOED)
    masks = ActionMasker(RULES).masks([(), (parked, cooling), (cooling,)])
    neutral = [choice == HEAD_SPECS[Head.STYLE].neutral for choice in range(4)]
    assert masks.style.tolist() == [[True] * 4, neutral, neutral]


def test_alpha_target_is_open_while_something_can_germinate_or_be_retargeted() -> None:
    parked = make_report(stage=Stage.BLENDING, alpha=AlphaState(alpha=0.5, target=0.5))
    cooling = make_report("r0c1", Stage.EMBARGOED)
    masks = ActionMasker(RULES).masks([(), (parked, cooling), (cooling,)])
    neutral = [choice is AlphaTarget.FULL for choice in AlphaTarget]
    assert masks.alpha_target.tolist() == [[True] * 3, [True] * 3, neutral]


def test_noop_is_never_offered() -> None:
    assert not ActionMasker(RULES).masks([()]).blueprint[0, BLUEPRINTS.index(Blueprint.NOOP)]


def test_blueprints_that_a_run_adds_are_offered_after_the_others() -> None:
    rules = msgspec.structs.replace(RULES, added_blueprints=("dilated", "widen"))
    (plain,) = ActionMasker(RULES).masks([()]).blueprint.tolist()
    (offered,) = ActionMasker(rules).masks([()]).blueprint.tolist()
    assert offered == [*plain, True, True]


def test_a_report_of_an_unknown_slot_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="'r9c9'"):
        ActionMasker(RULES).masks([(make_report("r9c9"),)])


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage > Stage.DORMANT])
def test_nothing_germinates_while_a_slot_cools_down_and_only_then(stage: Stage) -> None:
    masks = ActionMasker(RULES).masks([(make_report("r0c2", stage),)])
    assert bool(masks.op[0, Op.GERMINATE]) == (stage not in COOLDOWN_STAGES)


@pytest.mark.parametrize(("age", "is_legal"), [(4, False), (5, True)])
def test_a_seed_can_be_pruned_from_five_steps_of_age_on(age: int, is_legal: bool) -> None:
    masks = ActionMasker(RULES).masks([(make_report(age_steps=age),)])
    assert bool(masks.slot_by_op[0, Op.PRUNE, 0]) is is_legal


def test_a_ramping_seed_is_neither_pruned_nor_retargeted() -> None:
    ramp = AlphaState(alpha=0.2, target=1.0, mode=AlphaMode.UP, steps_total=5, steps_done=1)
    masks = ActionMasker(RULES).masks([(make_report(stage=Stage.BLENDING, alpha=ramp),)])
    assert not masks.op[0, [Op.PRUNE, Op.SET_ALPHA_TARGET]].any()
