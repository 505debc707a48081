"""Ablations: which combinations of seeds are disabled in one validation pass."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import combinations
from typing import Final

import msgspec

from esper.leyline.attribution import Ablation
from esper.leyline.reports import SeedReport
from esper.leyline.stages import ACTIVE_STAGES, Stage

__all__ = [
    "MAX_FACTORIAL_SEEDS",
    "AblationPlan",
    "AblationStrategy",
    "plan_ablations",
]

MAX_FACTORIAL_SEEDS: Final = 4
"""Up to this number of seeds, every combination is measured."""


class AblationStrategy(StrEnum):
    """Which combinations of seeds are measured."""

    FULL_FACTORIAL = "full_factorial"
    LEAVE_ONE_OUT = "leave_one_out"
    """Each seed off alone, each on alone, all off."""


class AblationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The ablations of one env's validation pass; the first is the unablated network."""

    strategy: AblationStrategy
    active: tuple[str, ...]
    """Slots with attributed seeds: alpha above 0, not fossilized; in the order of the reports."""
    fossils: tuple[str, ...]
    """Slots whose fossils are ablated one by one."""
    ablations: tuple[Ablation, ...]
    permutations: tuple[tuple[str, ...], ...] = ()
    """Permutations whose prefixes are all evaluated as well."""

    def without(self, slots_on: Collection[str]) -> Ablation:
        """Return the ablation that leaves exactly these active seeds enabled."""
        return Ablation(frozenset(self.active) - frozenset(slots_on))

    def seeds_on(self, ablation: Ablation) -> tuple[str, ...]:
        """Return the active seeds that an ablation leaves enabled."""
        return tuple(slot_id for slot_id in self.active if slot_id not in ablation.off)


def plan_ablations(
    reports: Sequence[SeedReport],
    *,
    fossils_to_measure: Collection[str] = (),
    permutations: tuple[tuple[str, ...], ...] = (),
) -> AblationPlan:
    """Return the ablation plan of an env.

    Args:
        reports: Its occupied slots.
        fossils_to_measure: Slots whose fossils are measured too: all of them on the last step,
            those with a drip bonus on every step.
        permutations: Permutations of the active seeds, for sampled Shapley values if there are
            too many seeds for the full factorial.
    """
    active = tuple(report.slot_id for report in reports if _is_attributed(report))
    fossils = tuple(
        report.slot_id
        for report in reports
        if report.stage is Stage.FOSSILIZED and report.slot_id in fossils_to_measure
    )
    is_factorial = len(active) <= MAX_FACTORIAL_SEEDS
    coalitions = _all_coalitions(active) if is_factorial else _end_coalitions(active)
    everything = frozenset(active)
    listed = (
        Ablation(),
        *(Ablation(everything - coalition) for coalition in coalitions),
        *(Ablation(everything - coalition) for coalition in _prefixes(permutations)),
        *(Ablation(frozenset({slot_id})) for slot_id in fossils),
    )
    return AblationPlan(
        strategy=(
            AblationStrategy.FULL_FACTORIAL if is_factorial else AblationStrategy.LEAVE_ONE_OUT
        ),
        active=active,
        fossils=fossils,
        # Each is evaluated once; dict order keeps the plan deterministic.
        ablations=tuple(dict.fromkeys(listed)),
        permutations=permutations,
    )


def _is_attributed(report: SeedReport) -> bool:
    # At alpha 0 a seed does not affect the output, so there is nothing to ablate.
    is_at_work = report.stage in ACTIVE_STAGES and report.alpha.alpha > 0.0
    return is_at_work and report.stage is not Stage.FOSSILIZED


def _all_coalitions(active: tuple[str, ...]) -> Iterator[frozenset[str]]:
    for size in range(len(active), -1, -1):
        yield from (frozenset(slots) for slots in combinations(active, size))


def _end_coalitions(active: tuple[str, ...]) -> Iterator[frozenset[str]]:
    everything = frozenset(active)
    yield from (everything - {slot_id} for slot_id in active)
    yield from (frozenset({slot_id}) for slot_id in active)
    yield frozenset()


def _prefixes(permutations: Iterable[tuple[str, ...]]) -> Iterator[frozenset[str]]:
    for order in permutations:
        yield from (frozenset(order[:length]) for length in range(len(order) + 1))
