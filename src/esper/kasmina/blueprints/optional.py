"""Seeds that a run offers only if it asks for them: two ways to add units to a layer.

A wide seed adds units in pairs of which one cancels the other, as Net2Wider copies the units of a
layer. A gradient-maximising seed (GradMax) has no influence at birth either, but chooses the
outgoing weights of its units such that the gradient of the incoming ones is as large as possible.
"""

from abc import abstractmethod
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from esper.kasmina.blueprints.seed import Seed
from esper.kasmina.layers import Conv2d, Linear, ZeroConv2d, ZeroLinear

__all__ = ["GradMaxImage", "GradMaxText", "WideImage", "WideText"]


def _num_units(channels: int) -> int:
    """Return how many units are added; with as many as channels, any outgoing weights are best."""
    return max(1, channels // 2)


class _Wide(Seed):
    """A residual branch of pairs of units, a unit and its copy, with opposite signs."""

    birth = "The copies have the weights of their units, so the difference is zero."

    def __init__(self, units: nn.Module, copies: nn.Module) -> None:
        super().__init__()
        self.units = units
        self.copies = copies

    def finish_initialisation(self) -> None:
        """Copy the units."""
        self.copies.load_state_dict(self.units.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        """Add the units' output and subtract that of their copies."""
        # The gradients of a unit and of its copy have opposite signs, so that the two part in the
        # first step. The difference comes first: it is exactly zero at birth, x + y - y is not x.
        added: Tensor = self.units(x) - self.copies(x)
        return x + added


class WideImage(_Wide):
    """Pairs of units with 3x3 convolutions."""

    structure = "x + W2 silu(W1 x) - V2 silu(V1 x), 3x3 and 1x1 convolutions"

    def __init__(self, channels: int) -> None:
        units, copies = (
            nn.Sequential(
                Conv2d(channels, _num_units(channels), 3),
                nn.SiLU(),
                Conv2d(_num_units(channels), channels, 1),
            )
            for _ in range(2)
        )
        super().__init__(units, copies)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of both convolutions of the units and of their copies."""
        return 20 * channels * _num_units(channels)


class WideText(_Wide):
    """Pairs of units with linear layers."""

    structure = "x + W2 silu(W1 x) - V2 silu(V1 x)"

    def __init__(self, channels: int) -> None:
        units, copies = (
            nn.Sequential(
                Linear(channels, _num_units(channels), bias=False),
                nn.SiLU(),
                Linear(_num_units(channels), channels, bias=False),
            )
            for _ in range(2)
        )
        super().__init__(units, copies)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of both layers of the units and of their copies."""
        return 4 * channels * _num_units(channels)


class _GradMax(Seed):
    """A residual branch whose outgoing weights are fitted to the first batch."""

    birth = "W1 is zero, so the branch adds nothing."

    def __init__(self, incoming: nn.Module, outgoing: Conv2d | Linear) -> None:
        super().__init__()
        self.incoming = incoming
        self.outgoing = outgoing
        self._is_fitted = False
        self.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
            _keep_loaded_weights
        )

    @abstractmethod
    def gradient_of_a_layer(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of W in x + W x, [channels, inputs], from that of the output."""

    def finish_initialisation(self) -> None:
        """Make the outgoing weights of the units orthonormal."""
        with torch.no_grad():
            basis = torch.linalg.qr(self.outgoing.weight.flatten(1)).Q
            self.outgoing.weight.copy_(basis.view_as(self.outgoing.weight))

    def forward(self, x: Tensor) -> Tensor:
        """Add the output of the branch."""
        added: Tensor = self.outgoing(functional.silu(self.incoming(x)))
        if self.training and added.requires_grad and not self._is_fitted:
            fit = partial(self._fit, x.detach())
            added.register_hook(fit)  # type: ignore[no-untyped-call]
        return x + added

    @torch.no_grad()
    def _fit(self, x: Tensor, gradient: Tensor) -> None:
        """Choose the outgoing weights that give W1 the largest gradient, given that of the output.

        With orthonormal outgoing weights U, W1's gradient is proportional to U^T G, where G is the
        gradient of a whole layer; the first left singular vectors of G make it largest.
        """
        self._is_fitted = True
        whole = self.gradient_of_a_layer(x.float(), gradient.float())
        # The decomposition fails for numbers that are not finite, which the governor handles.
        whole = torch.nan_to_num(whole, nan=0.0, posinf=0.0, neginf=0.0)
        basis = torch.linalg.svd(whole, full_matrices=False).U[:, : self.outgoing.weight.shape[1]]
        # `.data` does not count as a change of what autograd has saved: the gradient of W1, which
        # comes next, is that with the new weights. Before the first step W1 is zero, so the
        # output of the seed stays the same.
        self.outgoing.weight.data.copy_(basis.view_as(self.outgoing.weight))


def _keep_loaded_weights(seed: _GradMax, _incompatible: object) -> None:
    seed._is_fitted = True


class GradMaxImage(_GradMax):
    """Units with 3x3 convolutions."""

    structure = "x + W2 silu(W1 x), 3x3 and 1x1 convolutions"

    def __init__(self, channels: int) -> None:
        num_units = _num_units(channels)
        super().__init__(ZeroConv2d(channels, num_units), Conv2d(num_units, channels, 1))

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of both convolutions."""
        return 10 * channels * _num_units(channels)

    def gradient_of_a_layer(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of a 3x3 convolution's weights."""
        channels = x.shape[1]
        shape = (channels, channels, 3, 3)
        whole: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
            x, shape, gradient, padding=1
        )
        return whole.flatten(1)


class GradMaxText(_GradMax):
    """Units with linear layers."""

    structure = "x + W2 silu(W1 x)"

    def __init__(self, channels: int) -> None:
        num_units = _num_units(channels)
        super().__init__(
            ZeroLinear(channels, num_units, bias=False), Linear(num_units, channels, bias=False)
        )

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of both layers."""
        return 2 * channels * _num_units(channels)

    def gradient_of_a_layer(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of a linear layer's weights."""
        return gradient.flatten(0, 1).T @ x.flatten(0, 1)
