"""Ablations of seeds, and the contributions measured with them."""

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
    """The joint contribution of two seeds beyond the sum of their separate contributions."""

    first_slot: str
    second_slot: str
    interaction_pp: float


class SeedEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one seed; None means not measured in this pass."""

    slot_id: str
    contribution_pp: float
    """Accuracy of the network as it is minus accuracy with this seed off."""
    attributed_pp: float | None
    """Its own share of the gain of all active seeds; a fossil is part of the base."""
    interaction_sum_pp: float | None
    boost_received_pp: float | None
    """The best of its interactions."""


class ShapleyEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """One player's Shapley value: its share of the value of all players together."""

    player: str
    mean: float
    std: float
    """Spread over the sampled orders of joining; 0 when exact."""
    num_samples: int


class AttributionEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The contributions of an env's seeds, measured in one validation pass."""

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
        """Return the measurements of the seed in a slot."""
        return next((seed for seed in self.seeds if seed.slot_id == slot_id), None)
