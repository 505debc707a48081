"""The settings of the PPO agent and the coefficient schedules derived from them."""

import math
from dataclasses import dataclass

import msgspec

from esper.leyline.actions import HEAD_SPECS, HEADS
from esper.leyline.config import AdvantageNorm, TrainingConfig
from esper.tamiyo.network import PolicySpec

__all__ = ["Coefficients", "PPOConfig", "coefficients_at", "ppo_config_from"]

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
    lr_end: float
    weight_decay: float
    """Weight decay of the critics."""
    max_grad_norm: float
    num_epochs: int
    num_minibatches: int
    clip_ratio: float
    value_clip: float | None
    target_kl: float | None
    advantage_norm: AdvantageNorm
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
    floor_start: float = 1.0
    """Factor of the floors, entropies and mixtures alike, at the start of their annealing. The
    default is for agents that were saved without it."""
    floor_end: float
    """The same at its end."""
    total_updates: int
    """Horizon of the schedules that cover the run."""
    contribution_coef: float = 0.05
    contribution_warmup_updates: int = 1000

    @property
    def rows_per_minibatch(self) -> int:
        """Return the number of env rows per minibatch."""
        return math.ceil(self.num_envs / self.num_minibatches)

    @property
    def horizon(self) -> float:
        """Return the largest discounted return as a multiple of the largest reward."""
        return 1.0 / (1.0 - self.gamma) if self.gamma < 1.0 else math.inf


def ppo_config_from(
    training: TrainingConfig, *, obs_dim: int, entropy_anneal_updates: int
) -> PPOConfig:
    """Return the agent's settings from a run's configuration."""
    policy = PolicySpec(
        obs_dim=obs_dim,
        num_slots=len(training.slots),
        added_blueprints=training.blueprints,
        feature_dim=training.feature_dim,
        hidden_dim=training.lstm_hidden_dim,
        is_orthogonal=training.orthogonal_init,
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
        lr_end=training.lr if training.lr_end is None else training.lr_end,
        weight_decay=training.weight_decay,
        max_grad_norm=training.policy_max_grad_norm,
        num_epochs=training.recurrent_n_epochs,
        num_minibatches=training.num_minibatches,
        clip_ratio=training.clip_ratio,
        value_clip=training.value_clip,
        target_kl=training.target_kl,
        advantage_norm=training.advantage_norm,
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
        floor_start=training.floor_start,
        floor_end=training.floor_end,
        total_updates=training.total_train_steps or training.n_episodes,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficients:
    """The learning rate and the coefficients of the loss terms in one update."""

    lr: float
    entropy: float
    value: float
    floor: float
    floor_scale: float
    """Factor of the exploration floors: of the entropy floors and of the mixtures with uniform."""
    contribution: float


def coefficients_at(config: PPOConfig, num_updates: int) -> Coefficients:
    """Return the coefficients after this many successful updates."""
    # Without annealing the entropy coefficient keeps its start value.
    annealed = _progress(num_updates, config.entropy_anneal_updates, when_instant=0.0)
    entropy = _between(config.entropy_coef_start, config.entropy_coef_end, annealed)
    warmed = _progress(num_updates, config.value_warmup_updates, when_instant=1.0)
    ramp = _progress(num_updates, config.contribution_warmup_updates, when_instant=1.0)
    course = num_updates / max(config.total_updates, 1)
    faded = annealed if config.entropy_anneal_updates > 0 else min(course, 1.0)
    return Coefficients(
        lr=_between(config.lr, config.lr_end, min(course, 1.0)),
        entropy=max(entropy, config.entropy_coef_min),
        value=_between(config.value_coef_start, config.value_coef, warmed),
        floor=_floor_factor(course),
        floor_scale=_between(config.floor_start, config.floor_end, faded),
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
