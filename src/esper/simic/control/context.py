"""The context of an op handler, in addition to the action."""

from dataclasses import dataclass

import torch

from esper.kasmina.model import MorphogeneticModel

__all__ = ["HandlerContext"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerContext:
    """One env's model, and the inputs of a germination."""

    model: MorphogeneticModel
    seed_id: str
    """Id of the seed that a germination would create."""
    generator: torch.Generator
    accuracy_pct: float
    """The current validation accuracy."""
    step: int
    """Step of the episode."""
