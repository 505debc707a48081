"""The seeds of CNN hosts, for any height and width.

All but two end in a GroupNorm whose gain is initialised to zero. Its output is then zero, while its
gain and bias already have a gradient of normal magnitude; the layers before it get one after the
first update of the gain. Activations before it are SiLU, because with few channels a ReLU may be
dead for every input.
"""

import torch
from torch import Tensor
from torch.nn import functional

from esper.kasmina.blueprints.seed import Norm, Seed
from esper.kasmina.layers import Conv2d, GroupNorm, Linear, ZeroGroupNorm, ZeroLinear

__all__ = [
    "Bottleneck",
    "ChannelAttention",
    "ConvHeavy",
    "ConvLight",
    "ConvSmall",
    "Depthwise",
    "ImageNorm",
]


def _squeezed(channels: int, minimum: int) -> int:
    return max(minimum, channels // 4)


class ConvLight(Seed):
    """A residual branch with one 3x3 convolution."""

    structure = "x + GN(silu(conv3x3(x)))"
    birth = "The GroupNorm's per-channel gain is zero, so the branch adds nothing."
    kernel_size = 3

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv2d(channels, channels, self.kernel_size)
        self.norm = ZeroGroupNorm(channels)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of the convolution plus the norm's gain and bias."""
        return cls.kernel_size**2 * channels**2 + 2 * channels

    def forward(self, x: Tensor) -> Tensor:
        """Add the normalised output of one convolution."""
        added: Tensor = self.norm(functional.silu(self.conv(x)))
        return x + added


class ConvSmall(ConvLight):
    """A residual branch with one 1x1 convolution."""

    structure = "x + GN(silu(conv1x1(x)))"
    kernel_size = 1


class ConvHeavy(Seed):
    """A residual branch with two 3x3 convolutions."""

    structure = "x + GN(conv3x3(silu(GN(conv3x3(x)))))"
    birth = "The last GroupNorm's per-channel gain is zero, so the branch adds nothing."

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = Conv2d(channels, channels, 3)
        self.inner_norm = GroupNorm(channels)
        self.second = Conv2d(channels, channels, 3)
        self.norm = ZeroGroupNorm(channels)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of both convolutions and the last norm; the inner one has no weights."""
        return 18 * channels**2 + 2 * channels

    def forward(self, x: Tensor) -> Tensor:
        """Add the normalised output of two convolutions."""
        inner = functional.silu(self.inner_norm(self.first(x)))
        added: Tensor = self.norm(self.second(inner))
        return x + added


class Depthwise(Seed):
    """A residual branch with a depthwise separable 3x3 convolution."""

    structure = "x + GN(silu(conv1x1(depthwise3x3(x))))"
    birth = "The GroupNorm's per-channel gain is zero, so the branch adds nothing."

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = Conv2d(channels, channels, 3, groups=channels)
        self.pointwise = Conv2d(channels, channels, 1)
        self.norm = ZeroGroupNorm(channels)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of the depthwise and pointwise convolutions and the norm."""
        return channels**2 + 11 * channels

    def forward(self, x: Tensor) -> Tensor:
        """Add the normalised output of the separable convolution."""
        mixed = functional.silu(self.pointwise(self.depthwise(x)))
        added: Tensor = self.norm(mixed)
        return x + added


class Bottleneck(Seed):
    """A residual bottleneck: a 3x3 convolution with a quarter of the channels."""

    structure = "x + GN(conv1x1(silu(conv3x3(silu(conv1x1(x))))))"
    birth = "The GroupNorm's per-channel gain is zero, so the branch adds nothing."

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = _squeezed(channels, 8)
        self.down = Conv2d(channels, inner, 1)
        self.conv = Conv2d(inner, inner, 3)
        self.up = Conv2d(inner, channels, 1)
        self.norm = ZeroGroupNorm(channels)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of the three convolutions and the norm."""
        inner = _squeezed(channels, 8)
        return 2 * channels * inner + 9 * inner**2 + 2 * channels

    def forward(self, x: Tensor) -> Tensor:
        """Add the normalised output of the bottleneck."""
        inner = functional.silu(self.conv(functional.silu(self.down(x))))
        added: Tensor = self.norm(self.up(inner))
        return x + added


class ChannelAttention(Seed):
    """Squeeze-and-excitation: scales each channel by a function of the channels' means."""

    structure = "x * 2 sigmoid(W2 silu(W1 mean(x)) + b)"
    birth = "W2 and b are zero, so every channel is scaled by 2 sigmoid(0) = 1."

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = _squeezed(channels, 1)
        self.squeeze = Linear(channels, inner, bias=False)
        self.excite = ZeroLinear(inner, channels)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of both matrices and one bias per channel."""
        return 2 * channels * _squeezed(channels, 1) + channels

    def forward(self, x: Tensor) -> Tensor:
        """Scale each channel by a factor between 0 and 2."""
        logits = self.excite(functional.silu(self.squeeze(x.mean(dim=(2, 3)))))
        # Twice the sigmoid, so that the initial factor is 1 and a channel can be amplified as well
        # as muted.
        return x * (2 * torch.sigmoid(logits))[:, :, None, None]


class ImageNorm(Norm):
    """Interpolates between the features and their GroupNorm."""

    structure = "x + tanh(a) (g GN(x) - x) + b"

    def __init__(self, channels: int) -> None:
        super().__init__(GroupNorm(channels), (channels, 1, 1))
