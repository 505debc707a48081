"""Reinforcement learning: rewards, agent, attribution, control, training and evaluation.

Public names are imported on first access, so that importing the package does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.simic.seed_management import (
        advance_active_seed,
        aggregate_ppo_metrics,
        calculate_entropy_anneal_steps,
        resolve_target_slot,
        run_ppo_updates,
    )
    from esper.simic.training.parallel_env_state import ParallelEnvState
    from esper.simic.training.vectorized import train_ppo_vectorized

__all__ = [
    "ParallelEnvState",
    "advance_active_seed",
    "aggregate_ppo_metrics",
    "calculate_entropy_anneal_steps",
    "resolve_target_slot",
    "run_ppo_updates",
    "train_ppo_vectorized",
]

_HOMES = {
    **dict.fromkeys(__all__, "esper.simic.seed_management"),
    "ParallelEnvState": "esper.simic.training.parallel_env_state",
    "train_ppo_vectorized": "esper.simic.training.vectorized",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
