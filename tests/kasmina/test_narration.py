"""Each effect becomes the payload that a reader of events expects."""

import msgspec
import pytest
from tests.kasmina.seeds import CAUSE, measured, seed_in

from esper.kasmina.gates import evaluate_gate
from esper.kasmina.lifecycle import (
    Effect,
    Fossilized,
    Frozen,
    GateEvaluated,
    Germinated,
    ModuleDropped,
    Pruned,
    StageChanged,
)
from esper.kasmina.narration import payload_of
from esper.leyline.stages import LifecycleRules, Stage

SEED = measured(seed_in(Stage.HOLDING), accuracy_at_blending_start_pct=48.0)
GATE = evaluate_gate(SEED, Stage.FOSSILIZED, LifecycleRules())
WHO = {"slot_id": "r0c1", "seed_id": "s0"}
WORTH = {
    "blueprint": "norm",
    "age_steps": 30,
    "contribution_pp": 2.0,
    "improvement_pp": 11.0,
    "blending_delta_pp": 3.0,
}
CHANGE = StageChanged(
    seed_id="s0",
    from_stage=Stage.HOLDING,
    to_stage=Stage.BLENDING,
    steps_in_from_stage=7,
    alpha=1.0,
    accuracy_delta_pp=None,
)


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (
            Germinated(SEED),
            {
                "blueprint": "norm",
                "num_params": 17,
                "style": "SIGMOID_ADD",
                "tempo_steps": 5,
                "alpha_target": 1.0,
            },
        ),
        (
            GateEvaluated("s0", GATE),
            {
                "gate": "G5",
                "target_stage": "FOSSILIZED",
                "passed": True,
                "score": 0.2,
                "checks_passed": ("contribution_measured", "gradient_finite"),
                "checks_failed": (),
            },
        ),
        (
            CHANGE,
            {
                "from_stage": "HOLDING",
                "to_stage": "BLENDING",
                "alpha": 1.0,
                "steps_in_from_stage": 7,
                "accuracy_delta_pp": None,
            },
        ),
        (Fossilized(SEED), WORTH | {"num_params": 17}),
        (Pruned(SEED, CAUSE), WORTH | {"reason": "test", "initiator": "policy"}),
    ],
)
def test_effect_is_reported_with_every_field(effect: Effect, expected: dict[str, object]) -> None:
    payload = payload_of("r0c1", 17, effect)

    assert payload is not None
    assert msgspec.structs.asdict(payload) == WHO | expected


@pytest.mark.parametrize("effect", [ModuleDropped(), Frozen()])
def test_what_concerns_the_slot_alone_is_not_reported(effect: Effect) -> None:
    assert payload_of("r0c1", 17, effect) is None
