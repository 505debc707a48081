"""Sabotage: scrambles a blended seed in every second env, to see whether a policy notices."""

from collections.abc import Sequence

from esper.leyline.actions import ActionSpec, Op
from esper.leyline.legality import ActionRules, is_legal
from esper.leyline.reports import SeedReport
from esper.leyline.stages import Stage

__all__ = ["is_victim", "target_of"]


def is_victim(env_id: int) -> bool:
    """Return whether an env is sabotaged; the others show what happens without it."""
    return env_id % 2 == 1


def target_of(reports: Sequence[SeedReport], rules: ActionRules) -> str | None:
    """Return the slot of the first blended seed that could be pruned now, if there is one."""
    for report in reports:
        is_blended = report.stage in (Stage.BLENDING, Stage.HOLDING) and report.alpha.alpha > 0.0
        prune = ActionSpec(op=Op.PRUNE, slot_id=report.slot_id)
        if is_blended and is_legal(prune, reports, rules):
            return report.slot_id
    return None
