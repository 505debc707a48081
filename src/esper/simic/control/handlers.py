"""Op handlers: the effect of each op on a model. Legality is checked before, gates here."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from esper.kasmina.lifecycle import Transition
from esper.kasmina.seed import GerminationRequest, PruneCause, Ramp
from esper.leyline.actions import ActionSpec, Op
from esper.simic.control.context import HandlerContext
from esper.simic.seed_management import advance_active_seed

__all__ = ["HANDLERS"]


Handler: TypeAlias = Callable[[ActionSpec, HandlerContext[Any]], Transition]


def wait(action: ActionSpec, context: HandlerContext[Any]) -> Transition:
    """Do nothing; always succeeds."""
    return Transition(state=context.model.slot(action.slot_id).state)


def germinate(action: ActionSpec, context: HandlerContext[Any]) -> Transition:
    """Germinate a seed."""
    request = GerminationRequest(
        seed_id=context.seed_id,
        blueprint=action.blueprint,
        style=action.style,
        tempo_steps=action.tempo.steps,
        alpha_target=action.alpha_target.alpha,
        accuracy_pct=context.accuracy_pct,
        step=context.step,
        is_sterile=context.is_sterile,
    )
    return context.model.germinate(action.slot_id, request, context.generator)


def set_alpha_target(action: ActionSpec, context: HandlerContext[Any]) -> Transition:
    """Set a new alpha target for a seed; its algorithm stays."""
    slot = context.model.slot(action.slot_id)
    return slot.set_alpha_target(action.alpha_target.alpha, _ramp_of(action))


def prune(action: ActionSpec, context: HandlerContext[Any]) -> Transition:
    """Ramp a seed's alpha down and remove it."""
    return context.model.slot(action.slot_id).schedule_prune(_ramp_of(action), PruneCause())


def fossilize(action: ActionSpec, context: HandlerContext[Any]) -> Transition:
    """Make a seed in HOLDING permanent."""
    return context.model.slot(action.slot_id).fossilize()


HANDLERS: Final[Mapping[Op, Handler]] = {
    Op.WAIT: wait,
    Op.GERMINATE: germinate,
    Op.SET_ALPHA_TARGET: set_alpha_target,
    Op.PRUNE: prune,
    Op.FOSSILIZE: fossilize,
    Op.ADVANCE: advance_active_seed,
}


def _ramp_of(action: ActionSpec) -> Ramp:
    return Ramp(
        num_steps=action.alpha_speed.steps,
        curve=action.alpha_curve.curve,
        steepness=action.alpha_curve.steepness,
    )
