"""Dropout whose masks come from a generator handed in, so that no thread disturbs another."""

import torch
from torch import Tensor, nn

from esper.leyline.errors import ContractError

__all__ = ["SeededDropout"]


class SeededDropout(nn.Module):
    """Dropout that never draws from torch's global generator."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.generator: torch.Generator | None = None

    @property
    def is_active(self) -> bool:
        """Tell whether the next call will drop anything."""
        return self.training and self.probability > 0

    def forward(self, x: Tensor) -> Tensor:
        """Zero elements at random and scale up the rest, in training only."""
        if not self.is_active:
            return x
        if self.generator is None:
            raise ContractError("dropout has no generator; call set_dropout_generator first")
        kept = 1 - self.probability
        mask = torch.empty_like(x).bernoulli_(kept, generator=self.generator)
        return x * mask.div_(kept)

    def extra_repr(self) -> str:
        """Show the probability."""
        return f"probability={self.probability}"
