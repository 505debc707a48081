"""How a host runs in pieces: an entry, one stage per segment, an exit."""

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
    """A chain of stages, each ending where a seed may grow; subclasses add entry and exit."""

    def __init__(self, specs: Iterable[InjectionSpec], stages: dict[str, nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages.values())
        self._specs = tuple(specs)
        self._execution_order = tuple(stages)
        self._ends = {segment: index for index, segment in enumerate(stages, start=1)}

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        """Return where seeds may grow, in action order."""
        return self._specs

    def execution_order(self) -> tuple[str, ...]:
        """Return the slot ids as the forward pass meets them."""
        return self._execution_order

    def forward(self, x: Tensor) -> Tensor:
        """Map raw input to logits, without seeds."""
        return self._exit(self._run(self._enter(x), 0, None))

    def forward_to_segment(
        self, segment: str, x: Tensor, from_segment: str | None = None
    ) -> Tensor:
        """Run from raw input, or from the end of a segment, to the end of another."""
        end = self._end_of(segment)
        if from_segment is None:
            return self._run(self._enter(x), 0, end)
        start = self._end_of(from_segment)
        if start >= end:
            raise ContractError(f"segment {segment!r}: does not lie behind {from_segment!r}")
        return self._run(x, start, end)

    def forward_from_segment(self, segment: str, x: Tensor) -> Tensor:
        """Run from the end of a segment to the logits."""
        return self._exit(self._run(x, self._end_of(segment), None))

    def set_dropout_generator(self, generator: torch.Generator) -> None:
        """Choose where dropout masks are drawn from."""
        for part in self.modules():
            if isinstance(part, SeededDropout):
                part.generator = generator

    def _end_of(self, segment: str) -> int:
        try:
            return self._ends[segment]
        except KeyError:
            raise UnknownNameError("segment", segment, self._ends) from None

    def _run(self, x: Tensor, start: int, end: int | None) -> Tensor:
        for stage in islice(self.stages, start, end):
            x = stage(x)
        return x

    @abstractmethod
    def _enter(self, x: Tensor) -> Tensor:
        """Bring raw input into the form that the first stage takes."""

    @abstractmethod
    def _exit(self, x: Tensor) -> Tensor:
        """Turn what the last stage returns into logits."""


def require(is_valid: bool, name: str, value: object, constraint: str) -> None:
    """Refuse a host spec that nothing could be built from."""
    if not is_valid:
        raise InvalidValueError(name, value, constraint, "host")
