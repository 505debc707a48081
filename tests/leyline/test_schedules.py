"""Schedules as files: readable names, and one sentence for every mistake."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import (
    ActionSpec,
    AlphaSpeed,
    AlphaTarget,
    Blueprint,
    CurveChoice,
    Head,
    Op,
    Style,
    Tempo,
    causal_heads,
)
from esper.leyline.errors import UsageError
from esper.leyline.schedules import (
    ThresholdRule,
    actions_by_step,
    decode_rule,
    decode_schedule,
    scheduled,
)

HEADS = {
    Head.BLUEPRINT: Blueprint,
    Head.STYLE: Style,
    Head.TEMPO: Tempo,
    Head.ALPHA_TARGET: AlphaTarget,
    Head.ALPHA_SPEED: AlphaSpeed,
    Head.ALPHA_CURVE: CurveChoice,
}


@st.composite
def actions(draw: st.DrawFn) -> ActionSpec:
    """Draw an action whose heads without effect have their neutral value."""
    op = draw(st.sampled_from(Op))
    matters = causal_heads(op)
    heads = {
        head.value: draw(st.sampled_from(choices))
        for head, choices in HEADS.items()
        if head in matters
    }
    return ActionSpec(op=op, slot_id=draw(st.sampled_from(["r0c0", "r1c2"])), **heads)


@given(plan=st.dictionaries(st.integers(0, 99), actions()))
def test_schedule_survives_its_file(plan: dict[int, ActionSpec]) -> None:
    rows = tuple(scheduled(step, action) for step, action in plan.items())

    read = decode_schedule(msgspec.json.encode(rows), "plan.json")

    assert actions_by_step(read) == plan


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[", "not a schedule"),
        (b'[{"step": -1, "op": "prune", "slot": "r0c0"}]', "Expected `int` >= 0"),
        (b'[{"step": 0, "op": "prun", "slot": "r0c0"}]', "prune"),
        (b'[{"step": 0, "op": "germinate", "slot": "r0c0"}]', "germinate needs a blueprint"),
        (b'[{"step": 0, "op": "wait", "slot": "r0c0", "blue": "x"}]', "unknown field `blue`"),
        (
            b'[{"step": 2, "op": "wait", "slot": "r0c0"}, {"step": 2, "op": "wait", "slot": "a"}]',
            "step 2 has two actions",
        ),
        (
            b'[{"step": 0, "op": "germinate", "slot": "r0c0", "blueprint": "conv_hevy"}]',
            "conv_heavy",
        ),
    ],
)
def test_mistake_is_named_with_the_file(text: bytes, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        decode_schedule(text, "plan.json")

    assert str(caught.value).startswith("plan.json: ")


RULE = ThresholdRule(
    slots=("r0c0",),
    blueprint="conv_light",
    style="linear_add",
    first_step=0,
    last_step=20,
    after_steps=7,
    keep_above_pp=9.0,
    prune_below_pp=1.0,
    whole_from=36,
)


def test_rule_survives_its_file() -> None:
    assert decode_rule(msgspec.json.encode(RULE), "rule.json") == RULE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"blueprint": "conv_hevy"}, "conv_heavy"),
        ({"style": "linear"}, "linear_add"),
        ({"first_step": "soon"}, "Expected `int`, got `str`"),
        ({"keep": 1}, "unknown field `keep`"),
    ],
)
def test_mistake_in_a_rule_is_named_with_the_file(changes: dict[str, object], reason: str) -> None:
    text = msgspec.json.encode({**msgspec.structs.asdict(RULE), **changes})

    with pytest.raises(UsageError, match=reason) as caught:
        decode_rule(text, "rule.json")

    assert str(caught.value).startswith("rule.json: ")
