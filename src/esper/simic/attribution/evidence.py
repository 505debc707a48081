"""Evidence: contributions, shares and interactions of seeds from the accuracies of ablations."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from esper.leyline.attribution import (
    Ablation,
    AttributionEvidence,
    PairInteraction,
    SeedEvidence,
    ShapleyEstimate,
)
from esper.leyline.errors import ContractError
from esper.simic.attribution.configurations import AblationPlan, AblationStrategy
from esper.simic.attribution.shapley import exact_shapley, sampled_shapley

__all__ = ["attribute_contributions"]


@dataclass(frozen=True, slots=True)
class _Game:
    """A plan with its results: the value of every evaluated coalition."""

    plan: AblationPlan
    accuracies_pct: dict[Ablation, float]

    def value(self, slots_on: frozenset[str]) -> float:
        return self.accuracies_pct[self.plan.without(slots_on)]

    def removal_cost(self, slot_id: str) -> float:
        off = Ablation(frozenset({slot_id}))
        return self.accuracies_pct[Ablation()] - self.accuracies_pct[off]


def attribute_contributions(
    plan: AblationPlan, accuracies_pct: Sequence[float]
) -> AttributionEvidence:
    """Return the attribution of each seed, given the accuracies of the ablations in plan order."""
    if len(accuracies_pct) != len(plan.ablations):
        raise ContractError(
            f"{len(plan.ablations)} ablations were planned, {len(accuracies_pct)} were measured"
        )
    game = _Game(plan, dict(zip(plan.ablations, accuracies_pct, strict=True)))
    interactions = _interactions(game)
    shapley = _shapley(game)
    shares = _shares(game, shapley)
    active = (_active_seed(game, slot_id, shares, interactions) for slot_id in plan.active)
    fossils = (_fossil(game, slot_id) for slot_id in plan.fossils)
    return AttributionEvidence(
        accuracy_pct=game.accuracies_pct[Ablation()],
        # All active seeds off, fossils on: what the network would keep if growth ended here.
        committed_accuracy_pct=game.value(frozenset()),
        seeds=(*active, *fossils),
        interactions=interactions,
        shapley=shapley,
        is_exact=plan.strategy is AblationStrategy.FULL_FACTORIAL,
    )


def _interactions(game: _Game) -> tuple[PairInteraction, ...]:
    if game.plan.strategy is not AblationStrategy.FULL_FACTORIAL:
        return ()
    nothing = game.value(frozenset())
    return tuple(
        PairInteraction(
            first_slot=first,
            second_slot=second,
            # In all four terms exactly the named seeds are enabled; leave-one-out is not used.
            interaction_pp=game.value(frozenset({first, second}))
            - game.value(frozenset({first}))
            - game.value(frozenset({second}))
            + nothing,
        )
        for first, second in combinations(game.plan.active, 2)
    )


def _shapley(game: _Game) -> tuple[ShapleyEstimate, ...]:
    if game.plan.strategy is AblationStrategy.FULL_FACTORIAL:
        values = exact_shapley(game.plan.active, game.value)
        return tuple(
            ShapleyEstimate(player=slot_id, mean=value, std=0.0, num_samples=1)
            for slot_id, value in values.items()
        )
    return sampled_shapley(game.plan.permutations, game.value) if game.plan.permutations else ()


def _shares(game: _Game, shapley: Sequence[ShapleyEstimate]) -> dict[str, float]:
    if game.plan.strategy is AblationStrategy.FULL_FACTORIAL:
        return {estimate.player: estimate.mean for estimate in shapley}
    # The mean of joining first and joining last is the Shapley value as long as seeds interact
    # in pairs only, and needs no more than what leave-one-out measures anyway.
    nothing = game.value(frozenset())
    return {
        slot_id: (game.value(frozenset({slot_id})) - nothing + game.removal_cost(slot_id)) / 2.0
        for slot_id in game.plan.active
    }


def _active_seed(
    game: _Game, slot_id: str, shares: dict[str, float], interactions: Sequence[PairInteraction]
) -> SeedEvidence:
    own = [
        pair.interaction_pp
        for pair in interactions
        if slot_id in (pair.first_slot, pair.second_slot)
    ]
    return SeedEvidence(
        slot_id=slot_id,
        contribution_pp=game.removal_cost(slot_id),
        attributed_pp=shares[slot_id],
        interaction_sum_pp=sum(own) if own else None,
        boost_received_pp=max(own, default=None),
    )


def _fossil(game: _Game, slot_id: str) -> SeedEvidence:
    return SeedEvidence(
        slot_id=slot_id,
        contribution_pp=game.removal_cost(slot_id),
        # Fossils are ablated one at a time, which gives their removal cost but no share.
        attributed_pp=None,
        interaction_sum_pp=None,
        boost_received_pp=None,
    )
