"""How a seed's output meets its host: three operators, straight-through incubation, the gate.

`h` is the host's features, `s` the seed's output, `x` the seed's input, `alpha` a 0-dim or
broadcastable tensor without gradient. Every operator returns h's dtype and memory format. At alpha
0 it returns h, provided that `s` is finite: 0 * inf is not 0, and choosing per element would more
than double its cost. Whoever turns a seed off by alpha 0 leaves the seed out instead.
"""

import torch
from torch import Tensor, nn

from esper.kasmina.layers import Linear, initialise
from esper.leyline.actions import Topology

__all__ = ["GateNetwork", "blend_add", "blend_gate", "blend_multiply", "straight_through"]

MIN_GATE_HIDDEN = 8


def blend_add(h: Tensor, s: Tensor, alpha: Tensor) -> Tensor:
    """Cross-fade from host to seed, h + alpha * (s - h); exactly s at alpha 1."""
    return torch.lerp(h, s.to(h.dtype), alpha.to(h.dtype))


def blend_multiply(h: Tensor, s: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    """Scale the host by what the seed changed in its input: h * (1 + alpha * tanh(s - x))."""
    change = alpha * torch.tanh(s - x)
    return torch.addcmul(h, h, change.to(h.dtype))


def blend_gate(h: Tensor, s: Tensor, gate: Tensor, alpha: Tensor) -> Tensor:
    """Cross-fade as far as the gate lets through: h + alpha * gate * (s - h)."""
    return torch.lerp(h, s.to(h.dtype), (alpha * gate).to(h.dtype))


def straight_through(h: Tensor, s: Tensor) -> Tensor:
    """Return h bit for bit, and let the seed learn as if its output had been added to it."""
    result: Tensor = _StraightThrough.apply(h, s)  # type: ignore[no-untyped-call]
    return result


class _StraightThrough(torch.autograd.Function):
    """Forward never reads s, so not even a NaN in it can reach the host.

    It takes the context itself: with a `setup_context` beside it, torch would read its signature
    anew for every batch, which costs more than everything else here.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, h: Tensor, s: Tensor) -> Tensor:
        return h.view_as(h)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


class GateNetwork(nn.Module):
    """Tells from the seed's input, in (0, 1), how much of the seed to let through.

    A CNN has one gate per sample. A transformer has one per position, fed by the mean of the
    positions up to it: a mean over the whole sequence would tell the present about the future.
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
        counts = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        return self._gate(x.cumsum(dim=1) / counts.view(-1, 1))

    def _gate(self, pooled: Tensor) -> Tensor:
        return torch.sigmoid(self.output(torch.relu(self.hidden(pooled))))
