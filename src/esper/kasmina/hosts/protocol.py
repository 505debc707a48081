"""The interface of a host."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from esper.leyline.actions import Topology
from esper.leyline.slots import InjectionSpec

__all__ = ["HostProtocol"]


@runtime_checkable
class HostProtocol(Protocol):
    """A backbone that can be run segment by segment, with a slot at the end of each.

    A segment has the id of the slot at its end. For every segment s,
    `forward(x) == forward_from_segment(s, forward_to_segment(s, x))`, bit for bit.
    """

    @property
    def topology(self) -> Topology:
        """Return the host's topology."""
        ...

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """Return the injection points of seeds, in action order."""
        ...

    def execution_order(self) -> tuple[str, ...]:
        """Return the slot ids in the order of the forward pass."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """Map raw input to logits, without seeds."""
        ...

    def forward_to_segment(
        self, segment: str, x: Tensor, from_segment: str | None = None
    ) -> Tensor:
        """Run from raw input, or from the end of `from_segment`, to the end of `segment`."""
        ...

    def forward_from_segment(self, segment: str, x: Tensor) -> Tensor:
        """Run from the end of a segment to the logits."""
        ...

    def set_dropout_generator(self, generator: torch.Generator) -> None:
        """Set the generator of all dropout layers."""
        ...
