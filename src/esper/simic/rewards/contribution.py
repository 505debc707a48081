"""The dense modes of the contribution family: shaped, and escrow with the same other terms."""

from esper.leyline.rewards import RewardComponents, RewardInputs, SeedRewardInputs
from esper.simic.rewards.action_terms import action_terms
from esper.simic.rewards.costs import capacity_costs
from esper.simic.rewards.escrow import escrow_account, escrow_forfeit
from esper.simic.rewards.scheme import RewardScheme
from esper.simic.rewards.seed_terms import seed_attribution, suspicions_of, synergy, warnings
from esper.simic.rewards.terms import ModeTerms

__all__ = ["escrow_terms", "shaped_terms"]


def shaped_terms(inputs: RewardInputs, scheme: RewardScheme) -> ModeTerms:
    """Reward every living seed for its contribution in this step."""
    parts = _frame(inputs, scheme)
    for seed in inputs.living:
        paid = seed_attribution(seed, inputs, scheme.config)
        earned = paid.attribution + paid.ratio_penalty
        parts += [paid, *_side_terms(seed, inputs, earned, scheme)]
    return ModeTerms(
        components=RewardComponents.sum_of(*parts),
        suspicions=tuple(suspicions_of(inputs.living, scheme.config)),
    )


def escrow_terms(inputs: RewardInputs, scheme: RewardScheme) -> ModeTerms:
    """Reward every living seed for the change of its contribution; only fossils retain it."""
    parts = _frame(inputs, scheme)
    credits: dict[str, float] = {}
    for seed in inputs.living:
        account = escrow_account(seed, inputs, scheme.config)
        parts += [account.paid, *_side_terms(seed, inputs, account.worth, scheme)]
        credits[seed.slot_id] = account.next_credit
    # After the loop, as it needs the credits of all seeds that are still there.
    parts.append(RewardComponents(escrow_forfeit=escrow_forfeit(inputs, credits)))
    return ModeTerms(
        components=RewardComponents.sum_of(*parts),
        escrow_credits=credits,
        suspicions=tuple(suspicions_of(inputs.living, scheme.config)),
    )


def _frame(inputs: RewardInputs, scheme: RewardScheme) -> list[RewardComponents]:
    config = scheme.config
    is_paid = inputs.is_last_step and not config.disable_terminal_reward
    terminal = config.terminal_acc_weight * inputs.val_accuracy_pct if is_paid else 0.0
    return [
        capacity_costs(inputs, config),
        action_terms(inputs, scheme),
        RewardComponents(terminal=terminal),
    ]


def _side_terms(
    seed: SeedRewardInputs, inputs: RewardInputs, earned: float, scheme: RewardScheme
) -> tuple[RewardComponents, RewardComponents]:
    bonus = RewardComponents(synergy=synergy(seed, earned, scheme.config))
    return warnings(seed, inputs, earned, scheme.config), bonus
