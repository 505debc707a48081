"""Potential-based reward shaping: potentials and the bonus derived from them."""

from collections.abc import Iterable, Mapping
from typing import Final

from esper.leyline.rewards import (
    EpisodeEnd,
    Potential,
    RewardConfig,
    RewardFamily,
    RewardInputs,
    RewardMode,
    SlotStage,
)
from esper.leyline.stages import COOLDOWN_STAGES, Stage
from esper.simic.rewards.scheme import RewardScheme
from esper.simic.rewards.terms import committed_share

__all__ = [
    "STAGE_POTENTIALS",
    "first_potential",
    "network_potential",
    "potential_after",
    "shaping_bonus",
    "slot_potential",
]

STAGE_POTENTIALS: Final[Mapping[Stage, float]] = {
    Stage.UNKNOWN: 0.0,
    Stage.DORMANT: 0.0,
    Stage.GERMINATED: 1.0,
    Stage.TRAINING: 2.0,
    Stage.BLENDING: 3.5,
    Stage.HOLDING: 5.5,
    Stage.FOSSILIZED: 6.0,
    Stage.PRUNED: 0.0,
    Stage.EMBARGOED: 0.0,
    Stage.RESETTING: 0.0,
}
"""Potential of each stage on the way to a fossil; empty and pruned slots are equal."""

_WITHOUT_PROGRESS: Final = COOLDOWN_STAGES | {Stage.UNKNOWN, Stage.DORMANT}

_SHAPED_MODES: Final = frozenset(RewardMode) - {RewardMode.SPARSE, RewardMode.MINIMAL}


def slot_potential(slot: SlotStage, config: RewardConfig) -> float:
    """Return a slot's potential in the contribution family, from stage and time in stage."""
    if slot.stage in _WITHOUT_PROGRESS:
        return 0.0
    progress = config.step_progress_bonus * slot.steps_in_stage
    return STAGE_POTENTIALS[slot.stage] + min(progress, config.max_progress_bonus)


def network_potential(slots: Iterable[SlotStage], scheme: RewardScheme) -> float:
    """Return the potential of a state by stages: the sum over its occupied slots."""
    if scheme.family is RewardFamily.LOSS:
        return sum((STAGE_POTENTIALS[slot.stage] for slot in slots), 0.0)
    return sum((slot_potential(slot, scheme.config) for slot in slots), 0.0)


def first_potential(slots: Iterable[SlotStage], scheme: RewardScheme) -> float:
    """Return the potential of the state that a segment starts from.

    By accuracy it is 0, as of an untrained network: the state has not been validated yet.
    """
    return 0.0 if _is_by_accuracy(scheme) else network_potential(slots, scheme)


def potential_after(inputs: RewardInputs, scheme: RewardScheme) -> float:
    """Return the potential of the state that a step leads to; 0 if it is terminal.

    A terminal state must have none: nothing follows that could take it back, so that shaping would
    pay for growth whatever the growth is worth.
    """
    if inputs.is_last_step and scheme.episode_end is EpisodeEnd.TERMINATE:
        return 0.0
    if _is_by_accuracy(scheme):
        return _accuracy_potential(inputs, scheme.config)
    return network_potential(inputs.slots_after, scheme)


def shaping_bonus(before: float, after: float, scheme: RewardScheme) -> float:
    """Return the weighted change of the potential over one step.

    Over T steps the discounted sum telescopes to weight * (gamma^T * last - first), and last is 0
    for an episode that terminates: shaping moves reward in time and adds none.
    """
    if scheme.config.disable_pbrs or scheme.mode not in _SHAPED_MODES:
        return 0.0
    is_loss = scheme.family is RewardFamily.LOSS
    weight = scheme.loss_config.pbrs_weight if is_loss else scheme.config.pbrs_weight
    return weight * (scheme.gamma * after - before)


def _is_by_accuracy(scheme: RewardScheme) -> bool:
    is_by_contribution = scheme.family is RewardFamily.CONTRIBUTION
    return is_by_contribution and scheme.config.pbrs_potential is Potential.ACCURACY


def _accuracy_potential(inputs: RewardInputs, config: RewardConfig) -> float:
    """Return what the network achieves, from 0 to 1, as validated before the step's action.

    What the action changes is measured by the next validation and paid with the next step.
    """
    committed = config.pbrs_committed_share
    whole = inputs.val_accuracy_pct / 100.0
    return (1.0 - committed) * whole + committed * committed_share(inputs)
