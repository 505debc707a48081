"""The loss family: rewards the decrease of the loss. A positive delta is an improvement."""

import math

from esper.leyline.rewards import RewardComponents, RewardInputs
from esper.simic.rewards.scheme import RewardScheme
from esper.simic.rewards.terms import ModeTerms

__all__ = ["loss_terms"]


def loss_terms(inputs: RewardInputs, scheme: RewardScheme) -> ModeTerms:
    """Return the terms of the loss family: loss decrease, rent and final loss."""
    return ModeTerms(
        components=RewardComponents(
            loss_delta=_delta_term(inputs.loss_delta, scheme),
            rent=_rent(inputs, scheme),
            terminal=_terminal(inputs, scheme) if inputs.is_last_step else 0.0,
        )
    )


def _delta_term(loss_delta: float | None, scheme: RewardScheme) -> float:
    if loss_delta is None:
        return 0.0
    config = scheme.loss_config
    clip = config.loss_delta_clip
    z = max(-clip, min(loss_delta / scheme.task.loss_delta_std, clip))
    return config.loss_delta_weight * (z if z > 0.0 else config.regression_scale * z)


def _rent(inputs: RewardInputs, scheme: RewardScheme) -> float:
    config = scheme.loss_config
    seeds = (*inputs.living, *inputs.fossils)
    grown = sum(seed.num_params for seed in seeds if seed.age_steps >= config.rent_grace_steps)
    rent = scheme.task.rent_weight * math.log1p(grown / max(inputs.host_params, 1))
    return -min(rent, config.max_rent)


def _terminal(inputs: RewardInputs, scheme: RewardScheme) -> float:
    task = scheme.task
    share = (task.baseline_loss - inputs.val_loss) / (task.baseline_loss - task.target_loss)
    return scheme.loss_config.terminal_weight * max(0.0, min(share, 1.0))
