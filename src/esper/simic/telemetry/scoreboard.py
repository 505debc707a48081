"""The scoreboard: statistics of each blueprint's seeds over a whole run."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from esper.leyline.actions import Blueprint
from esper.leyline.effects import EnvEffect, Fossilization, Germination, Pruning
from esper.leyline.payloads import (
    BlueprintScore,
    ScoreboardUpdated,
    SeedFossilized,
    SeedPruned,
)

__all__ = ["BlueprintTally", "Scoreboard"]

COMPUTE_MULTIPLIERS: Final[Mapping[str, float]] = {
    Blueprint.NOOP: 1.0,
    Blueprint.NORM: 1.02,
    Blueprint.CONV_SMALL: 1.05,
    Blueprint.BOTTLENECK: 1.05,
    Blueprint.LORA: 1.05,
    Blueprint.DEPTHWISE: 1.08,
    Blueprint.LORA_LARGE: 1.08,
    Blueprint.CONV_LIGHT: 1.15,
    Blueprint.MLP_SMALL: 1.15,
    Blueprint.MLP: 1.20,
    Blueprint.CONV_HEAVY: 1.25,
    Blueprint.ATTENTION: 1.35,
    Blueprint.FLEX_ATTENTION: 1.35,
}
"""Estimated compute cost of a host with one such seed, relative to the host alone."""
ADDED_MULTIPLIER: Final = COMPUTE_MULTIPLIERS[Blueprint.CONV_LIGHT]
"""The same for blueprints that a run adds, whose cost is not known."""


class BlueprintTally(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the seeds of one blueprint."""

    num_germinated: int = 0
    num_fossilized: int = 0
    num_pruned: int = 0
    contribution_sum_pp: float = 0.0
    num_contributions: int = 0
    improvement_sum_pp: float = 0.0
    num_improvements: int = 0
    age_sum_steps: int = 0


class Scoreboard(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of every blueprint used so far; part of a checkpoint."""

    blueprints: dict[str, BlueprintTally] = {}
    params_added: int = 0

    def noting(self, effects: Iterable[EnvEffect]) -> "Scoreboard":
        """Return the scoreboard after these effects."""
        blueprints, params_added = dict(self.blueprints), self.params_added
        for effect in effects:
            match effect:
                case Germination(seed):
                    tally = blueprints.get(seed.blueprint, BlueprintTally())
                    blueprints[seed.blueprint] = msgspec.structs.replace(
                        tally, num_germinated=tally.num_germinated + 1
                    )
                case Fossilization(seed) | Pruning(seed):
                    tally = blueprints.get(seed.blueprint, BlueprintTally())
                    blueprints[seed.blueprint] = _with_end(tally, seed)
                    if isinstance(seed, SeedFossilized):
                        params_added += seed.num_params
        return Scoreboard(blueprints=blueprints, params_added=params_added)

    def scores(self) -> tuple[BlueprintScore, ...]:
        """Return the statistics of each blueprint, sorted by name."""
        return tuple(
            BlueprintScore(
                blueprint=name,
                num_germinated=tally.num_germinated,
                num_fossilized=tally.num_fossilized,
                num_pruned=tally.num_pruned,
                mean_contribution_pp=_mean(tally.contribution_sum_pp, tally.num_contributions),
                mean_improvement_pp=_mean(tally.improvement_sum_pp, tally.num_improvements),
                mean_age_steps=_mean(tally.age_sum_steps, tally.num_fossilized + tally.num_pruned),
            )
            for name, tally in sorted(self.blueprints.items())
        )

    def event(self, *, num_hosts: int) -> ScoreboardUpdated:
        """Return the scoreboard as an event; costs are averaged over all hosts so far."""
        return ScoreboardUpdated(
            blueprints=self.scores(),
            params_added=self.params_added,
            compute_cost=1.0 + self._added_cost() / num_hosts,
        )

    def _added_cost(self) -> float:
        return sum(
            (COMPUTE_MULTIPLIERS.get(name, ADDED_MULTIPLIER) - 1.0) * tally.num_fossilized
            for name, tally in sorted(self.blueprints.items())
        )


def _with_end(tally: BlueprintTally, end: SeedFossilized | SeedPruned) -> BlueprintTally:
    is_fossil = isinstance(end, SeedFossilized)
    contribution, improvement = end.contribution_pp, end.improvement_pp
    return msgspec.structs.replace(
        tally,
        num_fossilized=tally.num_fossilized + is_fossil,
        num_pruned=tally.num_pruned + (not is_fossil),
        contribution_sum_pp=tally.contribution_sum_pp + (contribution or 0.0),
        num_contributions=tally.num_contributions + (contribution is not None),
        improvement_sum_pp=tally.improvement_sum_pp + (improvement or 0.0),
        num_improvements=tally.num_improvements + (improvement is not None),
        age_sum_steps=tally.age_sum_steps + end.age_steps,
    )


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None
