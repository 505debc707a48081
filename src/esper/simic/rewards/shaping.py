"""Potential-based reward shaping: potentials and the bonus derived from them."""

from collections.abc import Iterable, Mapping
from typing import Final

from esper.leyline.rewards import RewardConfig, RewardFamily, RewardMode, SlotStage
from esper.leyline.stages import COOLDOWN_STAGES, Stage
from esper.simic.rewards.scheme import RewardScheme

__all__ = ["STAGE_POTENTIALS", "network_potential", "shaping_bonus", "slot_potential"]

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
    """Return the potential of a state: the sum over its occupied slots."""
    if scheme.family is RewardFamily.LOSS:
        return sum((STAGE_POTENTIALS[slot.stage] for slot in slots), 0.0)
    return sum((slot_potential(slot, scheme.config) for slot in slots), 0.0)


def shaping_bonus(before: float, after: float, scheme: RewardScheme) -> float:
    """Return the weighted change of the potential over one step.

    Over T steps the discounted sum telescopes to weight * (gamma^T * last - first): shaping moves
    reward in time and adds none. Episodes are truncated rather than terminal, so the last
    potential is not set to 0.
    """
    if scheme.config.disable_pbrs or scheme.mode not in _SHAPED_MODES:
        return 0.0
    is_loss = scheme.family is RewardFamily.LOSS
    weight = scheme.loss_config.pbrs_weight if is_loss else scheme.config.pbrs_weight
    return weight * (scheme.gamma * after - before)
