"""The settings of the PPO agent and the coefficient schedules derived from them."""

import math
from dataclasses import dataclass

import msgspec

from esper.leyline.actions import HEAD_SPECS, HEADS
from esper.leyline.config import TrainingConfig
from esper.simic.normalizers import REWARD_CLIP
from esper.tamiyo.network import PolicySpec

__all__ = ["Coefficients", "PPOConfig", "coefficients_at", "ppo_config_from"]

NUM_MINIBATCHES = 4

PerHead = tuple[float, ...]
"""One value per head, in canonical order."""


class PPOConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings that an update depends on; stored in every checkpoint.

    What a run can configure has its default in `TrainingConfig`, and none here.
    """

    policy: PolicySpec
    slot_ids: tuple[str, ...]
    num_envs: int
    num_steps: int
    lr: float
    weight_decay: float
    """Weight decay of the critics."""
    max_grad_norm: float
    num_epochs: int
    clip_ratio: float
    target_kl: float | None
    gamma: float
    gae_lambda: float
    advantage_std_floor: float = 0.1
    return_variance_floor: float = 1.0
    """Lower bound of the denominator of explained variance; smaller variances are flagged."""
    forced_value_weight: float = 0.2
    """Weight of steps without a choice in the critics' losses."""
    value_coef: float
    value_coef_start: float
    value_warmup_updates: int
    entropy_coef_start: float
    entropy_coef_end: float
    entropy_coef_min: float
    entropy_anneal_updates: int
    entropy_weights: PerHead
    entropy_floors: PerHead = tuple(HEAD_SPECS[head].entropy_floor for head in HEADS)
    floor_penalties: PerHead = tuple(HEAD_SPECS[head].floor_penalty for head in HEADS)
    total_updates: int
    """Horizon of the floor-penalty schedule."""
    contribution_coef: float = 0.05
    contribution_warmup_updates: int = 1000
    contribution_clip_pp: float = 10.0

    @property
    def rows_per_minibatch(self) -> int:
        """Return the number of env rows per minibatch."""
        return math.ceil(self.num_envs / NUM_MINIBATCHES)

    @property
    def largest_return(self) -> float:
        """Return the discounted return if every reward is at its clip limit."""
        return REWARD_CLIP / (1.0 - self.gamma) if self.gamma < 1.0 else math.inf


def ppo_config_from(
    training: TrainingConfig, *, obs_dim: int, entropy_anneal_updates: int
) -> PPOConfig:
    """Return the agent's settings from a run's configuration."""
    policy = PolicySpec(
        obs_dim=obs_dim,
        num_slots=len(training.slots),
        feature_dim=training.feature_dim,
        hidden_dim=training.lstm_hidden_dim,
    )
    start = training.entropy_coef_start
    end = training.entropy_coef_end
    value_start = training.value_coef_start
    weights = {head: HEAD_SPECS[head].entropy_weight for head in HEADS}
    weights |= {head: training.entropy_coef_per_head.get(head, weights[head]) for head in HEADS}
    return PPOConfig(
        policy=policy,
        slot_ids=training.slots,
        num_envs=training.n_envs,
        num_steps=training.max_epochs,
        lr=training.lr,
        weight_decay=training.weight_decay,
        max_grad_norm=training.policy_max_grad_norm,
        num_epochs=training.recurrent_n_epochs,
        clip_ratio=training.clip_ratio,
        target_kl=training.target_kl,
        gamma=training.gamma,
        gae_lambda=training.gae_lambda,
        value_coef=training.value_coef,
        value_coef_start=0.1 * training.value_coef if value_start is None else value_start,
        value_warmup_updates=training.value_warmup_batches,
        entropy_coef_start=training.entropy_coef if start is None else start,
        entropy_coef_end=training.entropy_coef if end is None else end,
        entropy_coef_min=training.entropy_coef_min,
        entropy_anneal_updates=entropy_anneal_updates,
        entropy_weights=tuple(weights.values()),
        total_updates=training.total_train_steps or training.n_episodes,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficients:
    """The coefficients of the loss terms in one update."""

    entropy: float
    value: float
    floor: float
    contribution: float


def coefficients_at(config: PPOConfig, num_updates: int) -> Coefficients:
    """Return the coefficients after this many successful updates."""
    # Without annealing the entropy coefficient keeps its start value.
    annealed = _progress(num_updates, config.entropy_anneal_updates, when_instant=0.0)
    entropy = _between(config.entropy_coef_start, config.entropy_coef_end, annealed)
    warmed = _progress(num_updates, config.value_warmup_updates, when_instant=1.0)
    ramp = _progress(num_updates, config.contribution_warmup_updates, when_instant=1.0)
    return Coefficients(
        entropy=max(entropy, config.entropy_coef_min),
        value=_between(config.value_coef_start, config.value_coef, warmed),
        floor=_floor_factor(num_updates / max(config.total_updates, 1)),
        contribution=config.contribution_coef * ramp,
    )


def _progress(num_updates: int, horizon: int, *, when_instant: float) -> float:
    return when_instant if horizon <= 0 else min(num_updates / horizon, 1.0)


def _between(start: float, end: float, progress: float) -> float:
    return start + (end - start) * progress


def _floor_factor(progress: float) -> float:
    """Return the factor of the entropy floor penalty: 1.5 at first, falling to 0.5 at the end."""
    if progress < 0.25:
        return 1.5
    if progress < 0.75:
        return 1.0
    return 1.0 - 0.5 * (min(progress, 1.0) - 0.75) / 0.25
