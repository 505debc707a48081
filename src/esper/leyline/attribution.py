"""What is switched off to find out what each seed is worth, and what that showed."""

import msgspec

__all__ = [
    "Ablation",
    "AttributionEvidence",
    "PairInteraction",
    "SeedEvidence",
    "ShapleyEstimate",
]


class Ablation(msgspec.Struct, frozen=True):
    """A network with some of its seeds switched off and the others as they are."""

    off: frozenset[str] = frozenset()
    """Slots whose alpha is forced to 0."""


class PairInteraction(msgspec.Struct, frozen=True, kw_only=True):
    """What two seeds are worth together beyond what each is worth alone."""

    first_slot: str
    second_slot: str
    interaction_pp: float


class SeedEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one seed; None means that the pass did not measure it."""

    slot_id: str
    contribution_pp: float
    """Accuracy of the network as it is minus accuracy with this seed off."""
    attributed_pp: float | None
    """Its own share of the gain of all active seeds; a fossil is part of the base."""
    interaction_sum_pp: float | None
    boost_received_pp: float | None
    """The best of its interactions."""


class ShapleyEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """One player's share of what all players are worth together."""

    player: str
    mean: float
    std: float
    """Spread over the sampled orders of joining; 0 when exact."""
    num_samples: int


class AttributionEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one validation pass says about the seeds of an env."""

    accuracy_pct: float
    committed_accuracy_pct: float
    """Accuracy with every seed off that is not a fossil."""
    seeds: tuple[SeedEvidence, ...]
    """Active seeds first, then the fossils that were left out."""
    interactions: tuple[PairInteraction, ...]
    shapley: tuple[ShapleyEstimate, ...]
    """Exact up to the full factorial, else sampled, else empty."""
    is_exact: bool

    def of(self, slot_id: str) -> SeedEvidence | None:
        """Return what was measured of the seed in a slot."""
        return next((seed for seed in self.seeds if seed.slot_id == slot_id), None)
