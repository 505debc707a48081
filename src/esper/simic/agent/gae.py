"""Generalised advantage estimation (GAE) and discounted returns over segments."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Advantages", "compute_gae", "discounted_returns"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Advantages:
    """Advantages and returns of a rollout, [envs, steps]; 0 in invalid rows."""

    advantages: Tensor
    returns: Tensor
    """Targets of the critics: advantages plus values."""
    realized: Tensor
    """Discounted rewards until the end of the segment, without any estimate of a critic."""
    td_errors: Tensor


def compute_gae(
    *,
    rewards: Tensor,
    values: Tensor,
    bootstrap_values: Tensor,
    ends: Tensor,
    valid: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Advantages:
    """Compute GAE backwards through the segments of all envs at once.

    Args:
        rewards: [envs, steps], like all tensors below.
        values: V on the scale of the rewards.
        bootstrap_values: V of the state after a truncated segment; 0 for a terminal segment.
        ends: the last row of each segment, terminal or truncated.
        valid: rows with a transition; a valid row before an invalid one must be an end.
        gamma: discount per step.
        gae_lambda: GAE lambda.
    """
    following = torch.cat((values[:, 1:], torch.zeros_like(values[:, :1])), dim=1)
    # delta_t = r_t + gamma V(s_t+1) - V(s_t), Schulman et al. 2016, equation 12.
    td_errors = rewards + gamma * torch.where(ends, bootstrap_values, following) - values
    td_errors = torch.where(valid, td_errors, 0.0)
    # 0 at the end of a segment, so that nothing is carried across it.
    carry = gamma * gae_lambda * (valid & ~ends).to(values.dtype)
    advantages = _summed_ahead(td_errors, carry)
    return Advantages(
        advantages=advantages,
        returns=torch.where(valid, advantages + values, 0.0),
        realized=discounted_returns(rewards, ends=ends, valid=valid, gamma=gamma),
        td_errors=td_errors,
    )


def discounted_returns(rewards: Tensor, *, ends: Tensor, valid: Tensor, gamma: float) -> Tensor:
    """Return each row's discounted sum of rewards until the end of its segment, [envs, steps]."""
    paid = torch.where(valid, rewards, 0.0)
    return _summed_ahead(paid, gamma * (valid & ~ends).to(paid.dtype))


def _summed_ahead(numbers: Tensor, carry: Tensor) -> Tensor:
    """Return x[t] = numbers[t] + carry[t] * x[t + 1] for every row."""
    sums = torch.empty_like(numbers)
    ahead = torch.zeros_like(numbers[:, 0])
    # A loop over steps, vectorised over envs: the closed form divides by powers of the discount,
    # which underflow in long episodes.
    for step in reversed(range(numbers.shape[1])):
        ahead = numbers[:, step] + carry[:, step] * ahead
        sums[:, step] = ahead
    return sums
