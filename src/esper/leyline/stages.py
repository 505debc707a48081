"""The life of a seed as data: stages, legal transitions, gates and the rules that time them."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec

from esper.leyline.ranges import NonNegativeInt, PositiveInt

__all__ = [
    "ACTIVE_STAGES",
    "ADVANCEABLE_STAGES",
    "COOLDOWN_STAGES",
    "GATE_FOR_TARGET",
    "NUM_STAGES",
    "PRUNABLE_STAGES",
    "RETARGETABLE_STAGES",
    "STAGE_INDEX",
    "TRANSITIONS",
    "Gate",
    "GateResult",
    "LifecycleRules",
    "Stage",
    "is_legal_transition",
    "next_stage",
]


class Stage(IntEnum):
    """Where a seed is in its life. The numbers are stored, so they never change."""

    UNKNOWN = 0
    DORMANT = 1
    GERMINATED = 2
    TRAINING = 3
    BLENDING = 4
    HOLDING = 6
    FOSSILIZED = 7
    PRUNED = 8
    EMBARGOED = 9
    RESETTING = 10


STAGE_INDEX: Final[Mapping[Stage, int]] = {stage: index for index, stage in enumerate(Stage)}
"""Column of each stage in a one-hot encoding (the gap at 5 is closed)."""

NUM_STAGES: Final = len(STAGE_INDEX)

TRANSITIONS: Final[Mapping[Stage, tuple[Stage, ...]]] = {
    Stage.UNKNOWN: (Stage.DORMANT,),
    Stage.DORMANT: (Stage.GERMINATED,),
    Stage.GERMINATED: (Stage.TRAINING, Stage.PRUNED),
    Stage.TRAINING: (Stage.BLENDING, Stage.PRUNED),
    Stage.BLENDING: (Stage.HOLDING, Stage.PRUNED),
    Stage.HOLDING: (Stage.FOSSILIZED, Stage.BLENDING, Stage.PRUNED),
    Stage.FOSSILIZED: (),
    Stage.PRUNED: (Stage.EMBARGOED,),
    Stage.EMBARGOED: (Stage.RESETTING,),
    Stage.RESETTING: (Stage.DORMANT,),
}
"""Legal moves; the first entry is the one that an advance without a target takes."""

ACTIVE_STAGES: Final = frozenset({Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED})
"""Stages whose seed module runs in the forward pass."""

COOLDOWN_STAGES: Final = frozenset({Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING})
"""Stages after a failure: the module is gone, the slot is not free yet."""

ADVANCEABLE_STAGES: Final = frozenset({Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING})
"""Stages from which ADVANCE may be tried; FOSSILIZE is a separate operation."""

RETARGETABLE_STAGES: Final = frozenset({Stage.BLENDING, Stage.HOLDING})
"""Stages in which the alpha target may be set again."""

PRUNABLE_STAGES: Final = frozenset(
    stage for stage, targets in TRANSITIONS.items() if Stage.PRUNED in targets
)


class Gate(IntEnum):
    """A check that a seed passes on its way to the next stage."""

    G0 = 0
    G1 = 1
    G2 = 2
    G3 = 3
    G5 = 5


GATE_FOR_TARGET: Final[Mapping[Stage, Gate]] = {
    Stage.GERMINATED: Gate.G0,
    Stage.TRAINING: Gate.G1,
    Stage.BLENDING: Gate.G2,
    Stage.HOLDING: Gate.G3,
    Stage.FOSSILIZED: Gate.G5,
}


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a gate, with the checks that passed and failed."""

    gate: Gate
    target: Stage
    passed: bool
    score: float
    """How far the seed is, from 0 to 1; informative only."""
    checks_passed: tuple[str, ...] = ()
    checks_failed: tuple[str, ...] = ()


class LifecycleRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every threshold and duration of the lifecycle, in steps, percentage points or ratios."""

    permissive: bool = True
    """Permissive gates require dwell time and health; strict ones require improvement as well."""
    auto_forward: tuple[Gate, ...] = ()
    """Gates that the slot tries by itself on each tick; G1, G2 and G3 may stand here."""
    min_training_steps: PositiveInt = 10
    min_blending_steps: PositiveInt = 10
    """Asked for by strict G3 only; in permissive mode the ramp itself is the dwell."""
    min_training_improvement_pp: float = 0.5
    min_gradient_ratio: float = 0.10
    min_gradient_health: float = 0.7
    min_fossilize_contribution_pp: float = 1.0
    min_prune_age_steps: NonNegativeInt = 5
    embargo_steps: PositiveInt = 5
    resetting_steps: PositiveInt = 1
    full_legitimacy_holding_steps: PositiveInt = 5
    """Steps in HOLDING after which a fossilization earns its whole bonus."""

    @property
    def is_advance_disabled(self) -> bool:
        """Return whether all gates advance automatically, which disables the ADVANCE op."""
        return {Gate.G1, Gate.G2, Gate.G3} <= set(self.auto_forward)


def is_legal_transition(from_stage: Stage, to_stage: Stage) -> bool:
    """Return whether the lifecycle has this transition."""
    return to_stage in TRANSITIONS[from_stage]


def next_stage(stage: Stage) -> Stage | None:
    """Return the stage that an advance without a target leads to, or None at the end."""
    forward = (target for target in TRANSITIONS[stage] if target not in COOLDOWN_STAGES)
    return next(forward, None)
