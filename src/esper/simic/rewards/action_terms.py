"""Reward terms of the action itself in the dense modes; only these depend on the target slot."""

import math

from esper.leyline.actions import Op
from esper.leyline.rewards import RewardComponents, RewardConfig, RewardInputs, SeedRewardInputs
from esper.leyline.stages import Stage
from esper.simic.rewards.scheme import RewardScheme
from esper.simic.rewards.seed_terms import is_ransomware

__all__ = ["action_terms"]


def action_terms(inputs: RewardInputs, scheme: RewardScheme) -> RewardComponents:
    """Return the terms of the effective op."""
    config, target = scheme.config, inputs.target()
    if inputs.op is Op.GERMINATE:
        return RewardComponents(action_shaping=config.germinate_cost)
    if inputs.op is Op.SET_ALPHA_TARGET:
        return RewardComponents(action_shaping=config.set_alpha_target_cost)
    if target is None:
        return RewardComponents()
    if inputs.op is Op.ADVANCE and target.stage is Stage.TRAINING:
        return RewardComponents(action_shaping=config.advance_from_training_penalty)
    if inputs.op is Op.PRUNE:
        return RewardComponents(action_shaping=config.prune_cost + _prune_shaping(target, config))
    if inputs.op is Op.FOSSILIZE:
        terms = _fossilize_terms(target, inputs, scheme)
        return RewardComponents.sum_of(
            terms, RewardComponents(action_shaping=config.fossilize_cost)
        )
    return RewardComponents()


def _prune_shaping(target: SeedRewardInputs, config: RewardConfig) -> float:
    contribution = target.contribution_pp
    if contribution is None:
        is_early = target.age_steps < config.early_prune_steps
        return config.early_prune_penalty if is_early else 0.0
    if contribution < config.prune_hurting_threshold:
        return config.prune_hurting_bonus
    if contribution < 0.0:
        return config.prune_acceptable_bonus
    penalty = config.prune_good_seed_penalty + config.prune_good_seed_scale * contribution
    return max(penalty, config.prune_good_seed_floor)


def _fossilize_terms(
    target: SeedRewardInputs, inputs: RewardInputs, scheme: RewardScheme
) -> RewardComponents:
    config = scheme.config
    contribution, attributed = target.contribution_pp, target.attributed_pp
    if not inputs.has_succeeded:
        return RewardComponents(action_shaping=config.refused_fossilize_penalty)
    # Before the test for contribution: a harmful seed may well have a large removal cost.
    if attributed is not None and attributed < 0.0:
        return RewardComponents(action_shaping=_harm(contribution, attributed, config))
    if contribution is None or not scheme.is_contributing(contribution):
        return RewardComponents(action_shaping=config.fossilize_noncontributing_penalty)
    bonus = config.fossilize_base_bonus + config.fossilize_contribution_scale * contribution
    if not config.disable_terminal_reward:
        quality = math.tanh(1.0 / config.fossilize_quality_ceiling)
        bonus += config.fossilize_terminal_scale * quality
    # Grows with the time in HOLDING, so that fossilizing at once is not worth its whole bonus.
    return RewardComponents(fossilize_bonus=bonus * scheme.legitimacy(target.steps_in_stage))


def _harm(contribution: float | None, attributed: float, config: RewardConfig) -> float:
    penalty = config.fossilize_harmful_penalty
    penalty += max(config.fossilize_harm_scale * -attributed, config.fossilize_harm_floor)
    if is_ransomware(contribution, attributed, config):
        penalty += config.fossilize_ransomware_penalty
    return penalty
