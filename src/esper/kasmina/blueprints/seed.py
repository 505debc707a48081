"""What every seed is: same shape out as in, the identity at birth; and the two both hosts share."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from esper.leyline.errors import InvalidValueError

__all__ = ["Noop", "Norm", "Seed"]


class Seed(nn.Module, ABC):
    """A module that preserves its input's shape and is initialised as the identity."""

    structure: ClassVar[str]
    """Its function as a formula, for the documentation."""
    birth: ClassVar[str]
    """One sentence: what is zero at birth, and so why the seed starts as the identity."""

    @classmethod
    @abstractmethod
    def num_params(cls, channels: int) -> int:
        """Count the parameters by closed form."""

    @classmethod
    def check_channels(cls, channels: int) -> None:
        """Refuse channels that the structure cannot be built for."""
        if channels < 1:
            raise InvalidValueError("channels", channels, "must be positive", cls.__name__)

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Map features to features of the same shape."""


class Noop(Seed):
    """Nothing: the placeholder of the action space, never germinated."""

    structure = "x"
    birth = "It has no parameters and is the identity for ever."

    def __init__(self, channels: int) -> None:
        super().__init__()

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Count no parameters."""
        return 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the input."""
        return x


class Norm(Seed):
    """A way from the features to their normalised form, rescaled and shifted."""

    birth = "The scalar a and the shift b are zero, so no part of the way is gone."

    def __init__(self, norm: nn.Module, gain_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.norm = norm
        self.amount = nn.Parameter(torch.zeros(()))
        self.gain = nn.Parameter(torch.ones(gain_shape))
        self.shift = nn.Parameter(torch.zeros(gain_shape))

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Count gain and shift of each channel, and the scalar."""
        return 2 * channels + 1

    def forward(self, x: Tensor) -> Tensor:
        """Go a learnt part of the way."""
        rescaled: Tensor = self.gain * self.norm(x)
        return x + torch.tanh(self.amount) * (rescaled - x) + self.shift
