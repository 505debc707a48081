"""Toy networks whose accuracy is a known function of the seeds that are on."""

import itertools
from collections.abc import Callable, Sequence

from tests.builders.messages import make_report

from esper.leyline.alpha import AlphaState
from esper.leyline.attribution import AttributionEvidence
from esper.leyline.reports import SeedReport
from esper.leyline.stages import Stage
from esper.simic.attribution.configurations import AblationPlan, plan_ablations
from esper.simic.attribution.evidence import attribute_contributions

Worth = Callable[[frozenset[str]], float]


def slots(num_slots: int) -> tuple[str, ...]:
    return tuple(f"r0c{index}" for index in range(num_slots))


def blending(slot_id: str, alpha: float = 0.5) -> SeedReport:
    return make_report(slot_id, Stage.BLENDING, alpha=AlphaState(alpha=alpha, target=alpha))


def fossil(slot_id: str) -> SeedReport:
    return make_report(slot_id, Stage.FOSSILIZED, alpha=AlphaState(alpha=1.0, target=1.0))


def accuracies(plan: AblationPlan, worth: Worth, everything: Sequence[str]) -> list[float]:
    """Return the accuracy of every ablation of a plan."""
    return [worth(frozenset(everything) - ablation.off) for ablation in plan.ablations]


def evidence_of(num_seeds: int, worth: Worth, **options) -> AttributionEvidence:
    """Weigh a network of so many blending seeds."""
    players = slots(num_seeds)
    plan = plan_ablations([blending(slot_id) for slot_id in players], **options)
    return attribute_contributions(plan, accuracies(plan, worth, players))


def brute_force_shapley(players: Sequence[str], worth: Worth) -> dict[str, float]:
    """Average the marginals over every single order of joining."""
    orders = list(itertools.permutations(players))
    totals = dict.fromkeys(players, 0.0)
    for order in orders:
        on: frozenset[str] = frozenset()
        for player in order:
            totals[player] += worth(on | {player}) - worth(on)
            on |= {player}
    return {player: total / len(orders) for player, total in totals.items()}
