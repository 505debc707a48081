"""Escrow accounts: reward is credited to living seeds in advance and taken back if lost."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from esper.leyline.actions import Op
from esper.leyline.rewards import RewardComponents, RewardConfig, RewardInputs, SeedRewardInputs
from esper.simic.rewards.seed_terms import attributed_of, ratio_penalty

__all__ = ["EscrowAccount", "escrow_account", "escrow_forfeit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EscrowAccount:
    """One seed's account after a step."""

    paid: RewardComponents
    next_credit: float
    worth: float
    """Target of the credit."""


def escrow_account(
    seed: SeedRewardInputs, inputs: RewardInputs, config: RewardConfig
) -> EscrowAccount:
    """Move a living seed's credit towards its worth; the change is the reward."""
    remembered = inputs.memory.of(seed.slot_id, seed.seed_id)
    credit = 0.0 if remembered is None else remembered.escrow_credit
    op, contribution = inputs.op_on(seed), seed.contribution_pp
    if op is Op.PRUNE:
        return _closed(credit, loss=0.0)
    if contribution is None:
        return EscrowAccount(paid=RewardComponents(), next_credit=credit, worth=credit)
    if contribution < 0.0:
        return _closed(credit, loss=config.contribution_weight * contribution)
    penalty = ratio_penalty(contribution, attributed_of(seed), config)
    worth = max(0.0, config.contribution_weight * _bounded(seed, inputs, config) + penalty)
    delta = worth - credit
    if config.escrow_delta_clip > 0.0:
        delta = max(-config.escrow_delta_clip, min(delta, config.escrow_delta_clip))
    return EscrowAccount(
        paid=RewardComponents(escrow_delta=delta), next_credit=credit + delta, worth=worth
    )


def escrow_forfeit(inputs: RewardInputs, credits: Mapping[str, float]) -> float:
    """Return the forfeited credit: of removed seeds, and on the last step of all unfossilized."""
    kept = {(seed.slot_id, seed.seed_id) for seed in (*inputs.living, *inputs.fossils)}
    slots = inputs.memory.slots
    gone = sum(slot.escrow_credit for slot in slots if (slot.slot_id, slot.seed_id) not in kept)
    if not inputs.is_last_step:
        return -gone
    is_kept = inputs.op is Op.FOSSILIZE and inputs.has_succeeded
    in_play = (
        credit
        for slot_id, credit in credits.items()
        if not (is_kept and slot_id == inputs.target_slot)
    )
    return -gone - sum(in_play)


def _closed(credit: float, *, loss: float) -> EscrowAccount:
    paid = RewardComponents(attribution=loss, escrow_delta=-credit)
    return EscrowAccount(paid=paid, next_credit=0.0, worth=0.0)


def _bounded(seed: SeedRewardInputs, inputs: RewardInputs, config: RewardConfig) -> float:
    contribution, progress = seed.contribution_pp or 0.0, seed.progress_since_germination_pp
    if progress is None:
        return config.unknown_progress_share * contribution
    # Escrow counts progress by the stable accuracy only, not by that of a single step.
    progress += inputs.stable_accuracy_pct - inputs.val_accuracy_pct
    if progress <= 0.0:
        return 0.0
    return contribution if contribution < progress else math.sqrt(progress * contribution)
