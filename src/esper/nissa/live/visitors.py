"""Who is connected to a route that has a limit, and who makes room for a new visitor."""

from dataclasses import dataclass, field
from typing import Final, Protocol

__all__ = ["Visitor", "Visitors"]

MIN_STAY_S: Final = 10.0
"""A visitor that came later is not displaced, so that crowds do not chase each other."""


class Visitor(Protocol):
    """One connection."""

    @property
    def is_waiting(self) -> bool:
        """Whether it has not asked for anything yet."""

    def displace(self) -> None:
        """End the connection to make room for another."""


@dataclass(eq=False, slots=True)
class Visitors:
    """Visitors up to a limit; beyond it, a new one displaces one that has been there for a while.

    Without displacement, as many connections as the limit, held open, would lock everyone out.
    """

    max_visitors: int
    _arrivals: dict[Visitor, float] = field(default_factory=dict)

    def make_room(self, now_s: float) -> bool:
        """Displace a visitor if there is no room for another; return False if none can go."""
        if len(self._arrivals) < self.max_visitors:
            return True
        stayed = [one for one, at_s in self._arrivals.items() if now_s - at_s >= MIN_STAY_S]
        if not stayed:
            return False
        leaving = min(stayed, key=self._order)
        self.leave(leaving)
        leaving.displace()
        return True

    def add(self, visitor: Visitor, now_s: float) -> None:
        """Add a visitor for which there is room."""
        self._arrivals[visitor] = now_s

    def leave(self, visitor: Visitor) -> None:
        """Remove a visitor, if it is still there."""
        self._arrivals.pop(visitor, None)

    def _order(self, visitor: Visitor) -> tuple[bool, float]:
        """Sort visitors that have asked for nothing first, then by arrival."""
        return not visitor.is_waiting, self._arrivals[visitor]
