"""The interface of a host."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from esper.leyline.actions import Topology
from esper.leyline.slots import InjectionSpec

__all__ = ["HostProtocol"]


@runtime_checkable
class HostProtocol(Protocol):
    """A backbone that can be run in pieces, cut where seeds may grow.

    A segment bears the id of the slot at its end. For every segment s,
    `forward(x) == forward_from_segment(s, forward_to_segment(s, x))`, bit for bit.
    """

    @property
    def topology(self) -> Topology:
        """Return the family of this host."""
        ...

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """Return where seeds may grow, in action order."""
        ...

    def execution_order(self) -> tuple[str, ...]:
        """Return the slot ids as the forward pass meets them."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """Map raw input to logits, without seeds."""
        ...

    def forward_to_segment(
        self, segment: str, x: Tensor, from_segment: str | None = None
    ) -> Tensor:
        """Run from raw input, or from the end of a segment, to the end of another."""
        ...

    def forward_from_segment(self, segment: str, x: Tensor) -> Tensor:
        """Run from the end of a segment to the logits."""
        ...

    def set_dropout_generator(self, generator: torch.Generator) -> None:
        """Choose where dropout masks are drawn from."""
        ...
