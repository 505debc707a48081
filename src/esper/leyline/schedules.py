"""Schedules: lists of actions by step, as files and reports hold them, decided without looking."""

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Any, Final, TypeVar

import msgspec

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
from esper.leyline.errors import UnknownNameError, UsageError
from esper.leyline.ranges import NonNegativeInt

__all__ = [
    "Schedule",
    "ScheduledAction",
    "ThresholdRule",
    "actions_by_step",
    "blueprint_named",
    "decode_rule",
    "decode_schedule",
    "scheduled",
    "style_named",
]

E = TypeVar("E", bound=Enum)


class ScheduledAction(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One action, with names in lower case; None for what its op does not use."""

    step: NonNegativeInt
    op: str
    slot: str
    blueprint: str | None = None
    style: str | None = None
    tempo: str | None = None
    alpha_target: str | None = None
    alpha_speed: str | None = None
    alpha_curve: str | None = None


Schedule = tuple[ScheduledAction, ...]


class ThresholdRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule that keeps and removes seeds by their measured contribution."""

    slots: tuple[str, ...]
    """Where it plants, in this order, whenever one is empty."""
    blueprint: str
    style: str
    first_step: int
    """Of planting."""
    last_step: int
    after_steps: int
    """Age from which seeds are judged."""
    keep_above_pp: float
    prune_below_pp: float
    whole_from: int = 0
    """Step from which its seeds run at full alpha; at half of it before, for half of the rent."""


_CHOICES: Final[dict[Head, type[IntEnum]]] = {
    Head.STYLE: Style,
    Head.TEMPO: Tempo,
    Head.ALPHA_TARGET: AlphaTarget,
    Head.ALPHA_SPEED: AlphaSpeed,
    Head.ALPHA_CURVE: CurveChoice,
}
"""Heads that are fields of an action under their own name and have the same values in every run."""


def scheduled(step: int, action: ActionSpec) -> ScheduledAction:
    """Return an action as a row of a schedule."""
    matters = causal_heads(action.op)
    return ScheduledAction(
        step=step,
        op=action.op.name.lower(),
        slot=action.slot_id,
        blueprint=action.blueprint if Head.BLUEPRINT in matters else None,
        **{
            head.value: getattr(action, head.value).name.lower()
            for head in _CHOICES
            if head in matters
        },
    )


def actions_by_step(schedule: Iterable[ScheduledAction]) -> dict[int, ActionSpec]:
    """Return the actions of a schedule; there is at most one in a step."""
    actions: dict[int, ActionSpec] = {}
    for row in schedule:
        if row.step in actions:
            raise UsageError(f"step {row.step} has two actions; an env acts once in a step")
        actions[row.step] = _action(row)
    return actions


def decode_schedule(data: bytes, source: str) -> Schedule:
    """Return the schedule of a JSON file, checked for unknown names.

    Args:
        data: the file: a list of objects such as
            `{"step": 0, "op": "germinate", "slot": "r0c1", "blueprint": "conv_light"}`.
        source: the file's name, for messages.
    """
    try:
        schedule = msgspec.json.decode(data, type=Schedule)
        actions_by_step(schedule)
        for row in schedule:
            if row.blueprint is not None:
                blueprint_named(row.blueprint)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{source}: not a schedule: {error}") from None
    except (UnknownNameError, UsageError) as error:
        raise UsageError(f"{source}: {error}") from None
    return schedule


def decode_rule(data: bytes, source: str) -> ThresholdRule:
    """Return the threshold rule of a JSON file, checked for unknown names.

    Args:
        data: the file: an object with the fields of a rule.
        source: the file's name, for messages.
    """
    try:
        rule = msgspec.json.decode(data, type=ThresholdRule)
        blueprint_named(rule.blueprint)
        style_named(rule.style)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{source}: not a rule: {error}") from None
    except UnknownNameError as error:
        raise UsageError(f"{source}: {error}") from None
    return rule


def blueprint_named(name: str) -> Blueprint:
    """Return the blueprint with this name."""
    return _named(Blueprint, name, Head.BLUEPRINT.value)


def style_named(name: str) -> Style:
    """Return the style with this name."""
    return _named(Style, name, Head.STYLE.value)


def _action(row: ScheduledAction) -> ActionSpec:
    op = _named(Op, row.op, "op")
    chosen: dict[str, Any] = {
        head.value: _named(choices, name, head.value)
        for head, choices in _CHOICES.items()
        if (name := getattr(row, head.value)) is not None
    }
    if row.blueprint is not None:
        chosen["blueprint"] = row.blueprint
    elif op is Op.GERMINATE:
        raise UsageError(f"step {row.step}: germinate needs a blueprint")
    return ActionSpec(op=op, slot_id=row.slot, **chosen)


def _named(choices: type[E], name: str, what: str) -> E:
    try:
        return choices[name.upper()]
    except KeyError:
        raise UnknownNameError(what, name, (item.name.lower() for item in choices)) from None
