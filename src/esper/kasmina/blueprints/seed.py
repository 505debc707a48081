"""The base class of seeds, and the two seeds that both topologies share."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from esper.leyline.errors import InvalidValueError

__all__ = ["Noop", "Norm", "Seed"]


class Seed(nn.Module, ABC):
    """A module that preserves its input's shape and is initialised as the identity."""

    structure: ClassVar[str]
    """The forward pass as a formula, for the documentation."""
    birth: ClassVar[str]
    """One sentence: which parameters are initialised to zero, making the seed the identity."""

    @classmethod
    @abstractmethod
    def num_params(cls, channels: int) -> int:
        """Return the number of parameters, in closed form."""

    @classmethod
    def check_channels(cls, channels: int) -> None:
        """Raise if the seed cannot be built for this number of channels."""
        if channels < 1:
            raise InvalidValueError("channels", channels, "must be positive", cls.__name__)

    def finish_initialisation(self) -> None:
        """Set the parameters that depend on others which have been drawn; most seeds have none."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Map features to features of the same shape."""


class Noop(Seed):
    """The identity: a placeholder in the action space that is never germinated."""

    structure = "x"
    birth = "It has no parameters and is always the identity."

    def __init__(self, channels: int) -> None:
        super().__init__()

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return 0."""
        return 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the input."""
        return x


class Norm(Seed):
    """Interpolates between the features and their normalised form, rescaled and shifted."""

    birth = "The interpolation weight tanh(a) and the shift b are zero, so x is unchanged."

    def __init__(self, norm: nn.Module, gain_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.norm = norm
        self.amount = nn.Parameter(torch.zeros(()))
        self.gain = nn.Parameter(torch.ones(gain_shape))
        self.shift = nn.Parameter(torch.zeros(gain_shape))

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of gain and shift, plus 1 for the interpolation weight."""
        return 2 * channels + 1

    def forward(self, x: Tensor) -> Tensor:
        """Interpolate with the learned weight."""
        rescaled: Tensor = self.gain * self.norm(x)
        # tanh has slope 1 at 0, so the weight learns at once, and it can never leave (-1, 1). The
        # shift stands outside, because inside it would have no gradient while the weight is 0.
        return x + torch.tanh(self.amount) * (rescaled - x) + self.shift
