"""The context of an op handler, in addition to the action."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from esper.kasmina.lifecycle import Transition
from esper.kasmina.seed import GerminationRequest
from esper.kasmina.slot_operations import SlotOperations

__all__ = ["Body", "HandlerContext"]

G = TypeVar("G")
G_contra = TypeVar("G_contra", contravariant=True)


class Body(Protocol[G_contra]):
    """What ops act on: a network with slots, or a model of one."""

    def slot(self, slot_id: str) -> SlotOperations:
        """Return a slot by its id."""
        ...

    def germinate(
        self, slot_id: str, request: GerminationRequest, generator: G_contra, /
    ) -> Transition:
        """Germinate a seed; on failure change nothing."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerContext(Generic[G]):
    """One env's body, and the inputs of a germination."""

    model: Body[G]
    seed_id: str
    """Id of the seed that a germination would create."""
    generator: G
    """Random numbers for the seed that a germination would create."""
    accuracy_pct: float
    """The current validation accuracy."""
    step: int
    """Step of the episode."""
    is_sterile: bool = False
    """Whether that seed is sterile."""
