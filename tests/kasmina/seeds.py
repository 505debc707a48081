"""Seeds in every stage, for tests of the pure machine."""

import msgspec

from esper.kasmina.alpha_controller import parked
from esper.kasmina.seed import GerminationRequest, Measurements, PruneCause, SeedState
from esper.leyline.actions import Blueprint, Style
from esper.leyline.alpha import AlphaState
from esper.leyline.reports import GradientReading
from esper.leyline.stages import Stage

HEALTHY = GradientReading(norm=1.0, ratio=0.5, health=1.0, has_vanishing=False, has_exploding=False)
CAUSE = PruneCause(reason="test", initiator="policy")
REQUEST = GerminationRequest(seed_id="s0", blueprint=Blueprint.NORM)

RESTING_ALPHA = {
    Stage.BLENDING: parked(0.5),
    Stage.HOLDING: parked(1.0),
    Stage.FOSSILIZED: parked(1.0),
}
OCCUPIED_STAGES = tuple(Stage)[2:]


def seed_in(stage: Stage, **changes: object) -> SeedState:
    """Return a seed that rests in this stage and has nothing against passing its gate."""
    seed = SeedState(
        seed_id="s0",
        blueprint=Blueprint.NORM,
        style=Style.SIGMOID_ADD,
        tempo_steps=5,
        alpha_target=1.0,
        stage=stage,
        previous_stage=Stage.DORMANT,
        steps_in_stage=10,
        age_steps=30,
        alpha=RESTING_ALPHA.get(stage, AlphaState()),
        measured=Measurements(
            accuracy_at_germination_pct=40.0,
            accuracy_at_stage_start_pct=50.0,
            current_accuracy_pct=51.0,
            contribution_pp=2.0,
            gradient=HEALTHY,
        ),
    )
    return msgspec.structs.replace(seed, **changes)


def measured(seed: SeedState, **changes: object) -> SeedState:
    """Return the seed with other measurements."""
    return msgspec.structs.replace(seed, measured=msgspec.structs.replace(seed.measured, **changes))
