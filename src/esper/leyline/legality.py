"""Which action is legal in which state: the one table that masks, rewards and handlers share."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from esper.leyline.actions import (
    BLUEPRINTS,
    BLUEPRINTS_BY_TOPOLOGY,
    ActionSpec,
    Op,
    Topology,
)
from esper.leyline.alpha import AlphaMode
from esper.leyline.reports import SeedReport
from esper.leyline.stages import (
    ADVANCEABLE_STAGES,
    COOLDOWN_STAGES,
    PRUNABLE_STAGES,
    RETARGETABLE_STAGES,
    LifecycleRules,
    Stage,
)

__all__ = [
    "OP_RULES",
    "ActionRules",
    "OpRule",
    "illegality",
    "is_legal",
]


class OpRule(msgspec.Struct, frozen=True, kw_only=True):
    """The preconditions of an op on its target slot."""

    stages: frozenset[Stage] = frozenset()
    """Stages of a seed that the op may be aimed at."""
    accepts_empty: bool = False
    needs_room: bool = False
    """No slot is cooling down, and the limit of seeds is not reached.

    A prune anywhere is followed by a cooldown everywhere: otherwise a policy could collect reward
    by repeatedly germinating and pruning. Seeds may incubate together.
    """
    needs_rest: bool = False
    """Alpha is not on a ramp."""
    needs_prune_age: bool = False


OP_RULES: Final[Mapping[Op, OpRule]] = {
    Op.WAIT: OpRule(stages=frozenset(Stage), accepts_empty=True),
    Op.GERMINATE: OpRule(accepts_empty=True, needs_room=True),
    Op.SET_ALPHA_TARGET: OpRule(stages=RETARGETABLE_STAGES, needs_rest=True),
    Op.PRUNE: OpRule(stages=PRUNABLE_STAGES, needs_rest=True, needs_prune_age=True),
    Op.FOSSILIZE: OpRule(stages=frozenset({Stage.HOLDING})),
    Op.ADVANCE: OpRule(stages=ADVANCEABLE_STAGES),
}
"""One row per op. Gates are evaluated when the op runs and are not part of this table."""


class ActionRules(msgspec.Struct, frozen=True, kw_only=True):
    """What legality depends on beside the seeds, fixed for a run."""

    slot_ids: tuple[str, ...]
    """The enabled slots in action order."""
    topology: Topology
    lifecycle: LifecycleRules = LifecycleRules()
    max_seeds: int | None = None
    """Seeds alive or fossilized at once; None is unlimited."""
    added_blueprints: tuple[str, ...] = ()
    """What may be germinated beside the blueprints of every run."""

    @property
    def blueprints(self) -> tuple[str, ...]:
        """Return what may be germinated."""
        return (*BLUEPRINTS_BY_TOPOLOGY[self.topology], *self.added_blueprints)

    @property
    def blueprint_choices(self) -> tuple[str, ...]:
        """Return the values of the blueprint head, those of other hosts included."""
        return (*BLUEPRINTS, *self.added_blueprints)

    def is_enabled(self, op: Op) -> bool:
        """Return whether the op is enabled in this run."""
        return not (op is Op.ADVANCE and self.lifecycle.is_advance_disabled)


def is_legal(action: ActionSpec, reports: Sequence[SeedReport], rules: ActionRules) -> bool:
    """Return whether the action may be tried on an env whose occupied slots are `reports`."""
    return illegality(action, reports, rules) is None


def illegality(action: ActionSpec, reports: Sequence[SeedReport], rules: ActionRules) -> str | None:
    """Return why the action may not be tried, or None; heads without effect are ignored."""
    if action.slot_id not in rules.slot_ids:
        return f"slot {action.slot_id!r} is not enabled"
    if not rules.is_enabled(action.op):
        return f"{action.op.name} is disabled: every gate is passed automatically"
    if action.op is Op.GERMINATE and action.blueprint not in rules.blueprints:
        # As plain text: the name of an enum's member would be quoted with its class.
        return f"blueprint {str(action.blueprint)!r} does not grow in a {rules.topology} host"
    if OP_RULES[action.op].needs_room and (obstacle := _obstacle(reports, rules)) is not None:
        return obstacle
    target = next((report for report in reports if report.slot_id == action.slot_id), None)
    return _unfitness(OP_RULES[action.op], target, rules)


def _unfitness(rule: OpRule, target: SeedReport | None, rules: ActionRules) -> str | None:
    if target is None:
        return None if rule.accepts_empty else "the slot is empty"
    if target.stage not in rule.stages:
        return f"the seed is in stage {target.stage.name}"
    if rule.needs_rest and target.alpha.mode is not AlphaMode.HOLD:
        return "alpha is on a ramp"
    min_age = rules.lifecycle.min_prune_age_steps
    if rule.needs_prune_age and target.age_steps < min_age:
        return f"the seed is {target.age_steps} steps old, younger than {min_age}"
    return None


def _obstacle(reports: Sequence[SeedReport], rules: ActionRules) -> str | None:
    for report in reports:
        if report.stage in COOLDOWN_STAGES:
            return f"slot {report.slot_id!r} is in stage {report.stage.name}"
    # Cooling slots count no seed, but any of them has already been refused above.
    if rules.max_seeds is not None and len(reports) >= rules.max_seeds:
        return f"{len(reports)} seeds are the limit"
    return None
