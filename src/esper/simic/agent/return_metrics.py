"""Metrics of a round's values, returns and advantages."""

import torch
from torch import Tensor

from esper.simic.agent.gae import Advantages
from esper.simic.agent.ppo_config import PPOConfig
from esper.simic.agent.ppo_metrics import ReturnMetrics, pack
from esper.simic.agent.rollout_buffer import RolloutBatch

__all__ = ["pack_return_metrics"]


def pack_return_metrics(
    batch: RolloutBatch,
    advantages: Advantages,
    values: Tensor,
    q_values: Tensor,
    config: PPOConfig,
) -> Tensor:
    """Compute the metrics of a round with at least one row, before its first update.

    Returns are the realised ones: a critic compared with targets that contain its own values
    explains them well whatever they are.

    Args:
        batch: the round.
        advantages: before normalisation.
        values: V on the scale of returns, [N, T].
        q_values: one value per op.
        config: has the floor of the returns' variance.
    """
    valid = batch.valid
    v, r = values[valid].double(), advantages.realized[valid].double()
    td, a = advantages.td_errors[valid].double(), advantages.advantages[valid].double()
    floor = config.return_variance_floor
    residual_var, return_var = _sample_var(r - v), _sample_var(r)
    quantiles = torch.quantile(r, r.new_tensor((0.1, 0.5, 0.9)))
    return pack(
        ReturnMetrics,
        explained_variance=1 - residual_var / return_var.clamp_min(floor),
        value_nrmse=residual_var.sqrt() / (return_var.sqrt() + floor**0.5),
        value_return_correlation=_correlation(v, r),
        value_mean=v.mean(),
        value_std=v.std(correction=0),
        value_min=v.amin(),
        value_max=v.amax(),
        td_error_mean=td.mean(),
        td_error_std=td.std(correction=0),
        bellman_error=td.abs().mean(),
        return_mean=r.mean(),
        return_variance=return_var,
        return_std=r.std(correction=0),
        return_p10=quantiles[0],
        return_p50=quantiles[1],
        return_p90=quantiles[2],
        return_skewness=_standardized_moment(r, 3),
        advantage_mean=a.mean(),
        advantage_std=a.std(correction=0),
        advantage_skewness=_standardized_moment(a, 3),
        advantage_kurtosis=_standardized_moment(a, 4) - 3,
        advantage_positive_fraction=(a > 0).double().mean(),
        forced_fraction=batch.is_forced[valid].double().mean(),
        q_spread=q_values.amax() - q_values.amin(),
    )


def _sample_var(sample: Tensor) -> Tensor:
    return (sample - sample.mean()).square().sum() / max(len(sample) - 1, 1)


def _correlation(one: Tensor, other: Tensor) -> Tensor:
    """Return the Pearson correlation; NaN if either sample is constant."""
    product = ((one - one.mean()) * (other - other.mean())).mean()
    return product / (one.std(correction=0) * other.std(correction=0))


def _standardized_moment(sample: Tensor, order: int) -> Tensor:
    """Return a standardised moment; NaN for a constant sample."""
    centred = sample - sample.mean()
    std = centred.square().mean().sqrt()
    return torch.where(std > 1e-8, (centred / std).pow(order).mean(), torch.nan)
