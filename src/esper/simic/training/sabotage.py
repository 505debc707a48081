"""Sabotage: scrambles a useful seed in every second env, to see whether a policy notices."""

from collections.abc import Sequence
from typing import Final

from esper.leyline.actions import ActionSpec, Op
from esper.leyline.legality import ActionRules, is_legal
from esper.leyline.reports import SeedReport
from esper.leyline.stages import Stage

__all__ = ["MIN_WORTH_PP", "is_victim", "target_of"]

MIN_WORTH_PP: Final = 4.0
"""Contribution of a useful seed: twice the standard error on a few hundred validation samples.

Seeds that contribute nothing are pruned with good reason in intact envs as well, and one that is
the identity stays so when it is scrambled: both would hide whether a policy notices.
"""


def is_victim(env_id: int) -> bool:
    """Return whether an env is sabotaged; the others show what happens without it."""
    return env_id % 2 == 1


def target_of(reports: Sequence[SeedReport], rules: ActionRules) -> str | None:
    """Return the slot of the first useful seed that could be pruned now, if there is one."""
    for report in reports:
        prune = ActionSpec(op=Op.PRUNE, slot_id=report.slot_id)
        if _is_useful(report) and is_legal(prune, reports, rules):
            return report.slot_id
    return None


def _is_useful(report: SeedReport) -> bool:
    is_blended = report.stage in (Stage.BLENDING, Stage.HOLDING) and report.alpha.alpha > 0.0
    return is_blended and (report.contribution_pp or 0.0) >= MIN_WORTH_PP
