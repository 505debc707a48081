"""What an inspection of a policy found: does it act on what it sees?"""

import msgspec

from esper.leyline.comparison import Estimate

__all__ = ["InspectionReport", "OpShift", "SabotageFigures"]


class OpShift(msgspec.Struct, frozen=True, kw_only=True):
    """How the probability of one op changes when one kind of evidence is turned around."""

    evidence: str
    """`contribution`, `accuracy` or `gradient`."""
    op: str
    as_seen: float
    """Mean probability, over all decisions in which a measured seed could be pruned."""
    flipped: float

    @property
    def shift(self) -> float:
        """Return the change."""
        return self.flipped - self.as_seen


class SabotageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How often a seed was pruned after its weights had been scrambled, and without that."""

    first_step: int
    window: int
    """Steps within which a prune counts."""
    min_worth_pp: float
    """Contribution from which on a seed is scrambled."""
    num_sabotaged: int
    num_intact: int
    pruned_sabotaged: float
    """Share of the sabotaged seeds, here and below."""
    pruned_intact: float
    difference: Estimate | None
    """Mean over seeds, with its interval; None if fewer than two had envs of both kinds."""


class InspectionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an inspection."""

    policy: str
    task: str
    seeds: tuple[int, ...]
    num_envs: int
    """Per seed."""
    num_decisions: int
    """In which a measured seed could be pruned."""
    shifts: tuple[OpShift, ...]
    sabotage: SabotageFigures
