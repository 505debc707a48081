"""Selection pressure: rewards, agent, attribution, control and training.

The two public names are loaded when they are first asked for, so that importing the package does
not import torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.simic.training.parallel_env_state import ParallelEnvState
    from esper.simic.training.vectorized import train_ppo_vectorized

__all__ = ["ParallelEnvState", "train_ppo_vectorized"]


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name == "train_ppo_vectorized":
        from esper.simic.training.vectorized import train_ppo_vectorized  # imports torch

        return train_ppo_vectorized
    if name == "ParallelEnvState":
        from esper.simic.training.parallel_env_state import ParallelEnvState  # imports torch

        return ParallelEnvState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
