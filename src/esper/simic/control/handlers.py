"""Op handlers: what each op does to a model. Legality is asked before, gates are asked here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

from esper.kasmina.lifecycle import Outcome
from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.seed import Germination, PruneCause, Ramp
from esper.leyline.actions import ActionSpec, Op
from esper.simic.seed_management import advance_active_seed

__all__ = ["HANDLERS", "HandlerContext", "carry_out"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerContext:
    """What a handler may draw on beside the action."""

    model: MorphogeneticModel
    seed_id: str
    """Name of the seed that a germination would plant."""
    generator: torch.Generator
    accuracy_pct: float
    """The host's accuracy at this moment."""
    step: int
    """Step of the episode."""


Handler: TypeAlias = Callable[[ActionSpec, HandlerContext], Outcome]


def wait(action: ActionSpec, context: HandlerContext) -> Outcome:
    """Do nothing, successfully."""
    return Outcome(state=context.model.slot(action.slot_id).state)


def germinate(action: ActionSpec, context: HandlerContext) -> Outcome:
    """Plant a seed."""
    wish = Germination(
        seed_id=context.seed_id,
        blueprint=action.blueprint,
        style=action.style,
        tempo_steps=action.tempo.steps,
        alpha_target=action.alpha_target.alpha,
        accuracy_pct=context.accuracy_pct,
        step=context.step,
    )
    return context.model.germinate(action.slot_id, wish, context.generator)


def set_alpha_target(action: ActionSpec, context: HandlerContext) -> Outcome:
    """Send a seed's alpha to another target; its algorithm stays."""
    return context.model.set_alpha_target(
        action.slot_id, action.alpha_target.alpha, _ramp_of(action)
    )


def prune(action: ActionSpec, context: HandlerContext) -> Outcome:
    """Ramp a seed's alpha down and remove it."""
    return context.model.schedule_prune(action.slot_id, _ramp_of(action), PruneCause())


def fossilize(action: ActionSpec, context: HandlerContext) -> Outcome:
    """Make a held seed permanent."""
    return context.model.fossilize(action.slot_id)


def advance(action: ActionSpec, context: HandlerContext) -> Outcome:
    """Try the gate to the next stage."""
    return advance_active_seed(context.model, action.slot_id)


HANDLERS: Final[Mapping[Op, Handler]] = {
    Op.WAIT: wait,
    Op.GERMINATE: germinate,
    Op.SET_ALPHA_TARGET: set_alpha_target,
    Op.PRUNE: prune,
    Op.FOSSILIZE: fossilize,
    Op.ADVANCE: advance,
}


def carry_out(action: ActionSpec, context: HandlerContext) -> Outcome:
    """Do what a legal action says."""
    return HANDLERS[action.op](action, context)


def _ramp_of(action: ActionSpec) -> Ramp:
    return Ramp(
        num_steps=action.alpha_speed.steps,
        curve=action.alpha_curve.curve,
        steepness=action.alpha_curve.steepness,
    )
