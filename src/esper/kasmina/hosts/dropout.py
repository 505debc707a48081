"""Dropout with an explicit generator, so that threads do not share random state."""

from typing import Final

import torch
from torch import Tensor, nn

from esper.leyline.errors import ContractError

__all__ = ["SeededDropout"]

LANES_PER_WORD: Final = 4
"""16-bit numbers per drawn int64: this takes a quarter of the time of `bernoulli_`."""
LANE_VALUES: Final = 2**16


class SeededDropout(nn.Module):
    """Dropout with its own generator; the probability is rounded to a multiple of 2**-16."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.generator: torch.Generator | None = None
        # At least one of the values keeps its element, or the scale would divide by zero.
        num_dropped = min(round(probability * LANE_VALUES), LANE_VALUES - 1)
        # Shifted, as the drawn bits are read as signed 16-bit numbers.
        self._threshold = num_dropped - LANE_VALUES // 2
        self._scale = LANE_VALUES / (LANE_VALUES - num_dropped)

    @property
    def is_active(self) -> bool:
        """Return whether dropout is applied in the current mode."""
        return self.training and self.probability > 0

    def forward(self, x: Tensor) -> Tensor:
        """Zero elements at random and scale the rest, in training mode only."""
        if not self.is_active:
            return x
        if self.generator is None:
            raise ContractError("dropout has no generator; call set_dropout_generator first")
        # On the generator's device, as a network that was loaded may have been moved since.
        device = self.generator.device
        words = torch.empty(-(-x.numel() // LANES_PER_WORD), dtype=torch.int64, device=device)
        # With an explicit lower bound: by default, random_ never sets the sign bit.
        words.random_(-(2**63), None, generator=self.generator)
        lanes = words.to(x.device).view(torch.int16)[: x.numel()].view(x.shape)
        return x * (lanes >= self._threshold).to(x.dtype).mul_(self._scale)

    def extra_repr(self) -> str:
        """Return the probability for `repr`."""
        return f"probability={self.probability}"
