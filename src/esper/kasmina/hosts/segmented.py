"""The base class of hosts that run segment by segment: entry, one stage per segment, exit."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice

import torch
from torch import Tensor, nn

from esper.kasmina.hosts.dropout import SeededDropout
from esper.leyline.errors import ContractError, InvalidValueError, UnknownNameError
from esper.leyline.slots import InjectionSpec

__all__ = ["SegmentedHost", "require"]


class SegmentedHost(nn.Module, ABC):
    """A sequence of stages with a slot after each; subclasses add entry and exit."""

    def __init__(self, specs: Iterable[InjectionSpec], stages: dict[str, nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages.values())
        self._specs = tuple(specs)
        self._execution_order = tuple(stages)
        # The end of a segment is the index of the stage after it.
        self._ends = {segment: index for index, segment in enumerate(stages, start=1)}

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """Return the injection points of seeds, in action order."""
        return self._specs

    def execution_order(self) -> tuple[str, ...]:
        """Return the slot ids in the order of the forward pass."""
        return self._execution_order

    def forward(self, x: Tensor) -> Tensor:
        """Map raw input to logits, without seeds."""
        return self._exit(self._run(self._enter(x), 0, None))

    def forward_to_segment(
        self, segment: str, x: Tensor, from_segment: str | None = None
    ) -> Tensor:
        """Run from raw input, or from the end of `from_segment`, to the end of `segment`."""
        end = self._end_of(segment)
        if from_segment is None:
            return self._run(self._enter(x), 0, end)
        start = self._end_of(from_segment)
        if start >= end:
            raise ContractError(f"segment {segment!r}: does not come after {from_segment!r}")
        return self._run(x, start, end)

    def forward_from_segment(self, segment: str, x: Tensor) -> Tensor:
        """Run from the end of a segment to the logits."""
        return self._exit(self._run(x, self._end_of(segment), None))

    def set_dropout_generator(self, generator: torch.Generator) -> None:
        """Set the generator of all dropout layers."""
        for part in self.modules():
            if isinstance(part, SeededDropout):
                part.generator = generator

    def _end_of(self, segment: str) -> int:
        try:
            return self._ends[segment]
        except KeyError:
            raise UnknownNameError("segment", segment, self._ends) from None

    def _run(self, x: Tensor, start: int, end: int | None) -> Tensor:
        # Slicing a ModuleList would build a new module, and register its parts, for every batch.
        for stage in islice(self.stages, start, end):
            x = stage(x)
        return x

    @abstractmethod
    def _enter(self, x: Tensor) -> Tensor:
        """Convert raw input to the first stage's input."""

    @abstractmethod
    def _exit(self, x: Tensor) -> Tensor:
        """Compute the logits from the last stage's output."""


def require(is_valid: bool, name: str, value: object, constraint: str) -> None:
    """Raise for an invalid value in a host spec."""
    if not is_valid:
        raise InvalidValueError(name, value, constraint, "host")
