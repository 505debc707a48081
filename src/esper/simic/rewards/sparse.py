"""The modes with a reward at the end of an episode: sparse, minimal and simplified."""

from esper.leyline.actions import Op
from esper.leyline.rewards import RewardComponents, RewardInputs
from esper.simic.rewards.scheme import RewardScheme
from esper.simic.rewards.terms import ModeTerms, committed_share

__all__ = ["minimal_terms", "simplified_terms", "sparse_terms"]


def sparse_terms(inputs: RewardInputs, scheme: RewardScheme) -> ModeTerms:
    """Reward at the end the accuracy with the fossils alone, minus a cost for their size."""
    return ModeTerms(components=RewardComponents(terminal=_committed_value(inputs, scheme)))


def minimal_terms(inputs: RewardInputs, scheme: RewardScheme) -> ModeTerms:
    """Return the sparse terms plus a penalty for pruning a seed too early."""
    target = inputs.target()
    is_early = (
        inputs.op is Op.PRUNE
        and target is not None
        and target.age_steps < scheme.config.early_prune_steps
    )
    return ModeTerms(
        components=RewardComponents(
            terminal=_committed_value(inputs, scheme),
            action_shaping=scheme.config.early_prune_penalty if is_early else 0.0,
        )
    )


def simplified_terms(inputs: RewardInputs, scheme: RewardScheme) -> ModeTerms:
    """Charge for each action; reward accuracy, fossils and what they achieve at the end."""
    config = scheme.config
    terminal = 0.0
    if inputs.is_last_step and not config.disable_terminal_reward:
        num_good = sum(scheme.is_contributing(fossil.contribution_pp) for fossil in inputs.fossils)
        terminal = config.simplified_accuracy_weight * inputs.val_accuracy_pct / 100.0
        terminal += config.simplified_fossil_bonus * num_good
        if config.simplified_committed_weight != 0.0:
            terminal += config.simplified_committed_weight * committed_share(inputs)
    cost = 0.0 if inputs.op is Op.WAIT else config.simplified_action_cost
    return ModeTerms(components=RewardComponents(action_shaping=cost, terminal=terminal))


def _committed_value(inputs: RewardInputs, scheme: RewardScheme) -> float:
    if not inputs.is_last_step:
        return 0.0
    config = scheme.config
    size = sum(fossil.num_params for fossil in inputs.fossils) / config.param_budget
    value = committed_share(inputs) - config.param_penalty_weight * size
    clip = config.sparse_reward_clip
    return config.sparse_reward_scale * max(-clip, min(value, clip))
