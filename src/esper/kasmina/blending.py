"""Blending of a seed's output into its host: three operators and the gate network.

`h` is the host's features, `s` the seed's output, `x` the seed's input, `alpha` a 0-dim or
broadcastable tensor without gradient. Every operator returns h's dtype and memory format. At alpha
0 it returns h, provided that `s` is finite: 0 * inf is not 0, and a per-element `where` would more
than double the cost. Callers therefore skip a seed with alpha 0 altogether.
"""

import torch
from torch import Tensor, nn

from esper.kasmina.layers import Linear, initialise
from esper.leyline.actions import Topology

__all__ = ["GateNetwork", "blend_add", "blend_gate", "blend_multiply"]

MIN_GATE_HIDDEN = 8


def blend_add(h: Tensor, s: Tensor, alpha: Tensor) -> Tensor:
    """Cross-fade from host to seed, h + alpha * (s - h); exactly s at alpha 1."""
    return torch.lerp(h, s.to(h.dtype), alpha.to(h.dtype))


def blend_multiply(h: Tensor, s: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    """Scale the host by what the seed changed in its input: h * (1 + alpha * tanh(s - x))."""
    # Bounded by tanh: the factor stays within 0 and 2, however far the seed departs from its input.
    change = alpha * torch.tanh(s - x)
    return torch.addcmul(h, h, change.to(h.dtype))


def blend_gate(h: Tensor, s: Tensor, gate: Tensor, alpha: Tensor) -> Tensor:
    """Cross-fade scaled by the gate: h + alpha * gate * (s - h)."""
    return torch.lerp(h, s.to(h.dtype), (alpha * gate).to(h.dtype))


class GateNetwork(nn.Module):
    """Computes a gate value in (0, 1) for the seed's output from the seed's input.

    A CNN has one gate per sample. A transformer has one per position, fed by the mean of the
    positions up to it: a mean over the whole sequence would not be causal.
    """

    def __init__(
        self, channels: int, topology: Topology, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        num_hidden = max(MIN_GATE_HIDDEN, channels // 4)
        self.topology = topology
        self.hidden = Linear(channels, num_hidden)
        self.output = Linear(num_hidden, 1)
        initialise(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, 1, 1, 1), or (B, T, C) to (B, T, 1)."""
        if self.topology is Topology.CNN:
            return self._gate(x.mean(dim=(2, 3))).view(-1, 1, 1, 1)
        # Running mean: position t sees positions 0 to t only.
        counts = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        return self._gate(x.cumsum(dim=1) / counts.view(-1, 1))

    def _gate(self, pooled: Tensor) -> Tensor:
        return torch.sigmoid(self.output(torch.relu(self.hidden(pooled))))
