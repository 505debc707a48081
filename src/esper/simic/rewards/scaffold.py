"""Hindsight credit: fossilizing a seed rewards earlier positive interactions with it."""

import math
from collections.abc import Iterable

import msgspec

from esper.leyline.rewards import RewardConfig

__all__ = ["ScaffoldEntry", "hindsight_credit", "with_interaction", "without_beneficiary"]


class ScaffoldEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One step in which a seed benefited from the presence of another."""

    beneficiary_slot: str
    interaction_pp: float
    step: int


def with_interaction(
    ledger: tuple[ScaffoldEntry, ...], first: str, second: str, interaction_pp: float, step: int
) -> tuple[ScaffoldEntry, ...]:
    """Return the ledger with both directions of a pair, if its interaction is positive."""
    if interaction_pp <= 0.0:
        return ledger
    entries = (
        ScaffoldEntry(
            beneficiary_slot=beneficiary,
            interaction_pp=interaction_pp,
            step=step,
        )
        # Interactions are symmetric, so each seed may have been the scaffold of the other.
        for beneficiary in (second, first)
    )
    return (*ledger, *entries)


def without_beneficiary(ledger: Iterable[ScaffoldEntry], slot_id: str) -> tuple[ScaffoldEntry, ...]:
    """Return the ledger without the entries of this beneficiary."""
    return tuple(entry for entry in ledger if entry.beneficiary_slot != slot_id)


def hindsight_credit(
    ledger: Iterable[ScaffoldEntry],
    slot_id: str,
    contribution_pp: float | None,
    step: int,
    config: RewardConfig,
    gamma: float,
) -> float:
    """Return the credit that a successful fossilization adds to the next step's reward.

    It depends on the counterfactual contribution of the new fossil, not on the host's progress.
    """
    if contribution_pp is None or contribution_pp <= 0.0:
        return 0.0
    credit = sum(
        config.hindsight_credit_weight
        * math.tanh(config.hindsight_credit_scale * entry.interaction_pp * contribution_pp)
        # Earlier help counts less, by the discount of the steps since.
        * gamma ** (step - entry.step)
        for entry in ledger
        if entry.beneficiary_slot == slot_id
    )
    return min(credit, config.max_hindsight_credit)
