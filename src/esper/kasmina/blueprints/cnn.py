"""The seeds of convolutional hosts, which work at any height and width.

All but two end in a GroupNorm whose gain is zero: it outputs nothing at birth, while its gain and
bias have a gradient of ordinary size at once, and everything before it as soon as the gain has
moved. Activations before it are SiLU, because a ReLU of few channels may be dead for every input.
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
    """One 3x3 convolution beside the host."""

    structure = "x + GN(silu(conv3x3(x)))"
    birth = "The GroupNorm's per-channel gain is zero, so the branch adds nothing."
    kernel_size = 3

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv2d(channels, channels, self.kernel_size)
        self.norm = ZeroGroupNorm(channels)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Count the convolution and the norm's gain and bias."""
        return cls.kernel_size**2 * channels**2 + 2 * channels

    def forward(self, x: Tensor) -> Tensor:
        """Add the normalised features of one convolution."""
        added: Tensor = self.norm(functional.silu(self.conv(x)))
        return x + added


class ConvSmall(ConvLight):
    """One 1x1 convolution beside the host."""

    structure = "x + GN(silu(conv1x1(x)))"
    kernel_size = 1


class ConvHeavy(Seed):
    """Two 3x3 convolutions beside the host."""

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
        """Count two convolutions and the last norm; the inner one has no parameters."""
        return 18 * channels**2 + 2 * channels

    def forward(self, x: Tensor) -> Tensor:
        """Add the normalised features of two convolutions."""
        inner = functional.silu(self.inner_norm(self.first(x)))
        added: Tensor = self.norm(self.second(inner))
        return x + added


class Depthwise(Seed):
    """A 3x3 filter per channel, then a 1x1 mix of them."""

    structure = "x + GN(silu(conv1x1(depthwise3x3(x))))"
    birth = "The GroupNorm's per-channel gain is zero, so the branch adds nothing."

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = Conv2d(channels, channels, 3, groups=channels)
        self.pointwise = Conv2d(channels, channels, 1)
        self.norm = ZeroGroupNorm(channels)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Count nine weights per channel, the mix and the norm."""
        return channels**2 + 11 * channels

    def forward(self, x: Tensor) -> Tensor:
        """Add the normalised mix of the filtered channels."""
        mixed = functional.silu(self.pointwise(self.depthwise(x)))
        added: Tensor = self.norm(mixed)
        return x + added


class Bottleneck(Seed):
    """A 3x3 convolution between fewer channels."""

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
        """Count the way down, the convolution, the way up and the norm."""
        inner = _squeezed(channels, 8)
        return 2 * channels * inner + 9 * inner**2 + 2 * channels

    def forward(self, x: Tensor) -> Tensor:
        """Add the normalised features of the narrow convolution."""
        inner = functional.silu(self.conv(functional.silu(self.down(x))))
        added: Tensor = self.norm(self.up(inner))
        return x + added


class ChannelAttention(Seed):
    """Squeeze and excitation: rescale each channel by what the whole image shows."""

    structure = "x * 2 sigmoid(W2 silu(W1 mean(x)) + b)"
    birth = "W2 and b are zero, so every channel is scaled by 2 sigmoid(0) = 1."

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = _squeezed(channels, 1)
        self.squeeze = Linear(channels, inner, bias=False)
        self.excite = ZeroLinear(inner, channels)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Count both matrices and one bias per channel."""
        return 2 * channels * _squeezed(channels, 1) + channels

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels, each by a factor between 0 and 2."""
        logits = self.excite(functional.silu(self.squeeze(x.mean(dim=(2, 3)))))
        return x * (2 * torch.sigmoid(logits))[:, :, None, None]


class ImageNorm(Norm):
    """A way from the features to their group-normalised form."""

    structure = "x + tanh(a) (g GN(x) - x) + b"

    def __init__(self, channels: int) -> None:
        super().__init__(GroupNorm(channels), (channels, 1, 1))
