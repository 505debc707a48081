"""What the handler of an op may draw on beside the action."""

from dataclasses import dataclass

import torch

from esper.kasmina.model import MorphogeneticModel

__all__ = ["HandlerContext"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerContext:
    """One env's body, and what a germination needs."""

    model: MorphogeneticModel
    seed_id: str
    """Name of the seed that a germination would plant."""
    generator: torch.Generator
    accuracy_pct: float
    """The host's accuracy at this moment."""
    step: int
    """Step of the episode."""
