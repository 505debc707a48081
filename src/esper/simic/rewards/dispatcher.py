"""Computes a reward: selects the mode, adds the terms common to all modes, returns new memory."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from esper.leyline.rewards import (
    RewardComponents,
    RewardFamily,
    RewardInputs,
    RewardMemory,
    RewardMode,
    RewardResult,
    SlotMemory,
)
from esper.simic.rewards.basic import basic_plus_terms, basic_terms
from esper.simic.rewards.contribution import escrow_terms, shaped_terms
from esper.simic.rewards.loss_primary import loss_terms
from esper.simic.rewards.scheme import RewardScheme
from esper.simic.rewards.shaping import potential_after, shaping_bonus
from esper.simic.rewards.sparse import minimal_terms, simplified_terms, sparse_terms
from esper.simic.rewards.terms import ModeTerms

__all__ = ["compute_reward"]

_Mode: TypeAlias = Callable[[RewardInputs, RewardScheme], ModeTerms]

_MODES: Final[Mapping[RewardMode, _Mode]] = {
    RewardMode.SHAPED: shaped_terms,
    RewardMode.ESCROW: escrow_terms,
    RewardMode.BASIC: basic_terms,
    RewardMode.BASIC_PLUS: basic_plus_terms,
    RewardMode.SPARSE: sparse_terms,
    RewardMode.MINIMAL: minimal_terms,
    RewardMode.SIMPLIFIED: simplified_terms,
}


def compute_reward(inputs: RewardInputs, scheme: RewardScheme) -> RewardResult:
    """Return one env's reward for one step; a pure function of its inputs."""
    mode = loss_terms if scheme.family is RewardFamily.LOSS else _MODES[scheme.mode]
    terms = mode(inputs, scheme)
    potential = potential_after(inputs, scheme)
    # In every mode: shaping telescopes, and the pending terms are owed for the step before.
    shared = RewardComponents(
        pbrs=shaping_bonus(inputs.memory.potential, potential, scheme),
        auto_prune_penalty=scheme.config.auto_prune_penalty * inputs.pending_auto_prunes,
        hindsight_credit=inputs.pending_hindsight_credit,
    )
    components = RewardComponents.sum_of(terms.components, shared)
    return RewardResult(
        total=components.total(),
        components=components,
        memory=RewardMemory(potential=potential, slots=_slots(inputs, terms)),
        suspicions=terms.suspicions,
    )


def _slots(inputs: RewardInputs, terms: ModeTerms) -> tuple[SlotMemory, ...]:
    return tuple(
        SlotMemory(
            slot_id=seed.slot_id,
            seed_id=seed.seed_id,
            alpha=seed.alpha,
            num_params=seed.num_params,
            escrow_credit=terms.escrow_credits.get(seed.slot_id, 0.0),
            drip_scale=terms.drip_scales.get(seed.slot_id, 0.0),
        )
        for seed in inputs.seeds
    )
