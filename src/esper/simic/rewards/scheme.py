"""The reward scheme of a run: family, mode and all constants."""

from typing import Final

import msgspec

from esper.leyline.config import TrainingConfig
from esper.leyline.rewards import (
    EpisodeEnd,
    LossRewardConfig,
    RewardConfig,
    RewardFamily,
    RewardMode,
)
from esper.leyline.stages import LifecycleRules
from esper.leyline.tasks import TaskSpec

__all__ = ["RewardScheme", "TaskFigures", "scheme_of"]


_TERMINAL_ONLY: Final = frozenset({RewardMode.SPARSE, RewardMode.MINIMAL})
"""Modes whose terminal term cannot be disabled, as they have hardly any other."""


class TaskFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the task that the loss family uses."""

    baseline_loss: float
    """Loss of a uniform random guess."""
    target_loss: float
    loss_delta_std: float
    rent_weight: float


class RewardScheme(msgspec.Struct, frozen=True, kw_only=True):
    """All settings that a reward depends on."""

    family: RewardFamily
    mode: RewardMode
    gamma: float
    """Discount of the PPO update; shaping telescopes only with the same discount."""
    config: RewardConfig
    loss_config: LossRewardConfig
    lifecycle: LifecycleRules
    task: TaskFigures
    episode_end: EpisodeEnd = EpisodeEnd.TERMINATE

    def is_contributing(self, contribution_pp: float | None) -> bool:
        """Return whether a seed's contribution is large enough; False if not measured."""
        threshold = self.lifecycle.min_fossilize_contribution_pp
        return contribution_pp is not None and contribution_pp >= threshold

    def legitimacy(self, holding_steps: int) -> float:
        """Return the fraction of the fossilization bonus for this many steps in HOLDING."""
        return min(1.0, holding_steps / self.lifecycle.full_legitimacy_holding_steps)


def scheme_of(config: TrainingConfig, task: TaskSpec) -> RewardScheme:
    """Return the reward scheme of a configuration and its task."""
    loss = config.loss_reward
    std = task.loss_delta_std if loss.loss_delta_std is None else loss.loss_delta_std
    rent_weight = task.loss_rent_weight if loss.rent_weight is None else loss.rent_weight
    return RewardScheme(
        family=config.reward_family,
        mode=config.reward_mode,
        gamma=config.gamma,
        config=config.reward,
        loss_config=loss,
        lifecycle=config.lifecycle,
        task=TaskFigures(
            baseline_loss=task.baseline_loss,
            target_loss=task.target_loss,
            loss_delta_std=std,
            rent_weight=rent_weight,
        ),
        episode_end=config.episode_end or _natural_end(config),
    )


def _natural_end(config: TrainingConfig) -> EpisodeEnd:
    """Return what fits the reward: a terminal term makes the last step the end of the task."""
    if config.reward_family is RewardFamily.LOSS:
        has_terminal_term = config.loss_reward.terminal_weight != 0.0
    else:
        has_terminal_term = (
            config.reward_mode in _TERMINAL_ONLY or not config.reward.disable_terminal_reward
        )
    return EpisodeEnd.TERMINATE if has_terminal_term else EpisodeEnd.BOOTSTRAP
