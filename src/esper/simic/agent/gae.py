"""Generalised advantage estimation (GAE) over segments."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Advantages", "compute_gae"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Advantages:
    """Advantages and returns of a rollout, [envs, steps]; 0 in invalid rows."""

    advantages: Tensor
    returns: Tensor
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
    td_errors = rewards + gamma * torch.where(ends, bootstrap_values, following) - values
    td_errors = torch.where(valid, td_errors, 0.0)
    carry = gamma * gae_lambda * (valid & ~ends).to(values.dtype)
    advantages = torch.empty_like(td_errors)
    ahead = torch.zeros_like(td_errors[:, 0])
    for step in reversed(range(td_errors.shape[1])):
        ahead = td_errors[:, step] + carry[:, step] * ahead
        advantages[:, step] = ahead
    return Advantages(
        advantages=advantages,
        returns=torch.where(valid, advantages + values, 0.0),
        td_errors=td_errors,
    )
