"""The layers of hosts and seeds; constructing them does not use torch's global generator."""

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "CausalAttention",
    "Conv2d",
    "Embedding",
    "GroupNorm",
    "Linear",
    "ZeroConv2d",
    "ZeroGroupNorm",
    "ZeroLinear",
    "initialise",
    "num_groups",
]

GROUP_COUNTS: Final = (32, 16, 8, 4, 2, 1)
MIN_CHANNELS_PER_GROUP: Final = 16
EMBEDDING_STD: Final = 0.02


class Conv2d(nn.Conv2d):
    """A convolution without bias, with "same" padding, whose weights are set by `initialise`.

    A 1x1 convolution is computed as a matrix multiplication over the channels: for the few channels
    of a small host this takes half the time of oneDNN's convolution. (Not measured on a GPU.)
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, groups: int = 1
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            padding=kernel_size // 2,
            groups=groups,
            bias=False,
        )
        self.is_pointwise = kernel_size == 1 and groups == 1

    def reset_parameters(self) -> None:
        """Leave the parameters to `initialise`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in, height, width) to (batch, out, height, width)."""
        if not self.is_pointwise:
            return super().forward(x)
        batch, channels, height, width = x.shape
        # Flattened to 2-D for reproducibility: with more dimensions the order of torch's matrix
        # multiplication depends on whether the weights require a gradient.
        pixels = x.permute(0, 2, 3, 1).reshape(-1, channels)
        mixed = functional.linear(pixels, self.weight.flatten(1))
        return mixed.view(batch, height, width, -1).permute(0, 3, 1, 2)


class Linear(nn.Linear):
    """A linear layer whose parameters are set by `initialise`."""

    def reset_parameters(self) -> None:
        """Leave the parameters to `initialise`."""


class Embedding(nn.Embedding):
    """An embedding whose weights are set by `initialise`."""

    def reset_parameters(self) -> None:
        """Leave the parameters to `initialise`."""


class ZeroLinear(nn.Linear):
    """A zero-initialised linear layer: its initial contribution to the host is zero."""

    def reset_parameters(self) -> None:
        """Zero the parameters."""
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class ZeroConv2d(nn.Conv2d):
    """A zero-initialised 3x3 convolution without bias, with "same" padding."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1, bias=False)

    def reset_parameters(self) -> None:
        """Zero the parameters."""
        nn.init.zeros_(self.weight)


class GroupNorm(nn.GroupNorm):
    """GroupNorm over the groups of `num_groups`, without parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__(num_groups(channels), channels, affine=False)


class ZeroGroupNorm(nn.GroupNorm):
    """GroupNorm with zero-initialised gain and bias, which have a gradient from the first step.

    Its input must require a gradient, as it does after a trainable layer: on the CPU, torch 2.13's
    channels-last backward writes the input's gradient even if not required, and crashes.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(num_groups(channels), channels)
        nn.init.zeros_(self.weight)


def num_groups(channels: int) -> int:
    """Return the largest group count with at least 16 channels per group, or any that divides."""
    divisors = [count for count in GROUP_COUNTS if channels % count == 0]
    wide = (count for count in divisors if channels // count >= MIN_CHANNELS_PER_GROUP)
    return next(wide, divisors[0])


def initialise(
    module: nn.Module, generator: torch.Generator | None, *, linear_std: float | None = None
) -> None:
    """Initialise the parameters, in registration order, from this CPU generator only.

    Convolutions are Kaiming normal, embeddings N(0, 0.02), linear weights N(0, linear_std) or, by
    default, N(0, 1/sqrt(fan_in)), biases zero.
    """
    for part in module.modules():
        if isinstance(part, Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu", generator=generator)
        elif isinstance(part, Linear):
            std = part.in_features**-0.5 if linear_std is None else linear_std
            nn.init.normal_(part.weight, std=std, generator=generator)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, Embedding):
            nn.init.normal_(part.weight, std=EMBEDDING_STD, generator=generator)


class CausalAttention(nn.Module):
    """Causal self-attention; subclasses may override how the heads attend."""

    def __init__(self, channels: int, num_heads: int, project: nn.Linear) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.queries_keys_values = Linear(channels, 3 * channels)
        self.project = project

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, channels) to the same shape."""
        batch, time, channels = x.shape
        # One matrix multiplication for all three projections.
        packed = self.queries_keys_values(x).view(batch, time, 3, self.num_heads, -1)
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        heads = self.attend(q, k, v)
        projected: Tensor = self.project(heads.transpose(1, 2).reshape(batch, time, channels))
        return projected

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values of (batch, head, time, width) tensors."""
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
