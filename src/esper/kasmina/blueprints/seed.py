"""What every seed module is: the same shape out as in, and the identity at birth."""

from typing import ClassVar

from torch import Tensor, nn

from esper.leyline.errors import InvalidValueError

__all__ = ["Noop", "Seed"]


class Seed(nn.Module):
    """A module that keeps its input's shape and returns the input itself until it has learnt."""

    structure: ClassVar[str]
    """Its function as a formula, for the documentation."""
    birth: ClassVar[str]
    """One sentence: what is zero at birth, and so why the seed starts as the identity."""

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Count the parameters by closed form."""
        raise NotImplementedError

    @classmethod
    def check_channels(cls, channels: int) -> None:
        """Refuse channels that the structure cannot be built for."""
        if channels < 1:
            raise InvalidValueError("channels", channels, "must be positive", cls.__name__)

    def forward(self, x: Tensor) -> Tensor:
        """Map features to features of the same shape."""
        raise NotImplementedError


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
