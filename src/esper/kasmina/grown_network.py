"""A grown network for use outside of training: it takes inputs as they are stored."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from esper.kasmina.model import MorphogeneticModel

__all__ = ["GrownNetwork", "Preprocess"]


class Preprocess(nn.Module):
    """Maps stored inputs to those of training: standardized pixels, or token ids as int64."""

    factor: Tensor | None
    offset: Tensor | None

    def __init__(self, mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
        """Set the scale.

        Args:
            mean: of the stored pixels, per channel; None leaves inputs unscaled.
            std: their standard deviation.
        """
        super().__init__()
        if mean is None or std is None:
            self.factor = self.offset = None
            return
        # The same numbers as in training, so that the logits are the same bits.
        centre, width = (torch.tensor(each)[:, None, None] for each in (mean, std))
        self.register_buffer("factor", 1 / width)
        self.register_buffer("offset", -centre / width)

    def forward(self, x: Tensor) -> Tensor:
        """Return (x - mean) / std; without a scale, integers as int64 and floats unchanged."""
        if self.factor is None or self.offset is None:
            return x if x.is_floating_point() else x.long()
        return torch.addcmul(self.offset, x.to(self.factor.dtype), self.factor)


class GrownNetwork(nn.Module):
    """A host with the seeds that contribute to its output, and the scale of its inputs."""

    def __init__(self, preprocess: Preprocess, model: MorphogeneticModel) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Map stored inputs, such as pixels from 0 to 255, to logits."""
        logits: Tensor = self.model(self.preprocess(x))
        return logits
