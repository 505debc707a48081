"""Owns generalised advantage estimation over segments."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Advantages", "compute_gae"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Advantages:
    """What a rollout was worth, [envs, steps]; 0 in rows that are not valid."""

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
    """Estimate advantages backwards through each env's segments, all envs at once.

    Args:
        rewards: [envs, steps], as are all that follow.
        values: V on the scale of the rewards.
        bootstrap_values: V of what follows a truncated segment; 0 where a segment is terminal.
        ends: the last row of each segment, be it terminal or truncated.
        valid: rows that hold a transition; a row before one that does not must be an end.
        gamma: discount per step.
        gae_lambda: decay of the estimator.
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
