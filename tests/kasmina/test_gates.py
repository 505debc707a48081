"""Each gate asks for what its mode demands, and for nothing else."""

import msgspec
import pytest
from tests.kasmina.seeds import HEALTHY, measured, seed_in

from esper.kasmina.alpha_controller import parked, retarget
from esper.kasmina.gates import GATE_CHECKS, evaluate_gate
from esper.kasmina.seed import SeedState
from esper.leyline.actions import Blueprint
from esper.leyline.reports import GradientReading
from esper.leyline.stages import GATE_FOR_TARGET, Gate, LifecycleRules, Stage

STRICT, PERMISSIVE = LifecycleRules(permissive=False), LifecycleRules(permissive=True)
READY = {
    Stage.GERMINATED: seed_in(Stage.GERMINATED),
    Stage.TRAINING: seed_in(Stage.GERMINATED),
    Stage.BLENDING: seed_in(Stage.TRAINING),
    Stage.HOLDING: seed_in(Stage.BLENDING, alpha=parked(1.0)),
    Stage.FOSSILIZED: seed_in(Stage.HOLDING),
}
"""Keyed by the stage that the gate guards."""


def gradient(**changes: object) -> GradientReading:
    return msgspec.structs.replace(HEALTHY, **changes)


TRAINING, BLENDING, HOLDING = READY[Stage.BLENDING], READY[Stage.HOLDING], READY[Stage.FOSSILIZED]

# Target, seed, the check that must fail in strict mode, and in permissive mode.
DEFECTS: list[tuple[Stage, SeedState, set[str], set[str]]] = [
    (Stage.GERMINATED, seed_in(Stage.GERMINATED, seed_id=""), {"seed_id"}, {"seed_id"}),
    (
        Stage.GERMINATED,
        seed_in(Stage.GERMINATED, blueprint=Blueprint.NOOP),
        {"blueprint"},
        {"blueprint"},
    ),
    (Stage.TRAINING, seed_in(Stage.TRAINING), {"germinated"}, {"germinated"}),
    (
        Stage.BLENDING,
        seed_in(Stage.TRAINING, steps_in_stage=9),
        {"training_steps"},
        {"training_steps"},
    ),
    (Stage.BLENDING, measured(TRAINING, current_accuracy_pct=50.4), {"improvement"}, set()),
    (Stage.BLENDING, measured(TRAINING, current_accuracy_pct=None), {"improvement"}, set()),
    (Stage.BLENDING, measured(TRAINING, gradient=gradient(ratio=0.09)), {"gradient_ratio"}, set()),
    (
        Stage.BLENDING,
        measured(TRAINING, gradient=None),
        {"gradient_ratio"},
        {"gradient_measured", "gradient_finite", "gradient_health"},
    ),
    (
        Stage.BLENDING,
        measured(TRAINING, gradient=gradient(has_exploding=True)),
        set(),
        {"gradient_finite"},
    ),
    (
        Stage.BLENDING,
        measured(TRAINING, gradient=gradient(norm=float("inf"))),
        set(),
        {"gradient_finite"},
    ),
    (
        Stage.BLENDING,
        measured(TRAINING, gradient=gradient(health=0.69)),
        set(),
        {"gradient_health"},
    ),
    (
        Stage.HOLDING,
        seed_in(Stage.BLENDING, alpha=parked(0.7)),
        {"alpha_target"},
        {"alpha_target"},
    ),
    (
        Stage.HOLDING,
        seed_in(Stage.BLENDING, alpha=retarget(parked(0.5), 1.0, 3)),
        {"alpha_arrived"},
        {"alpha_arrived"},
    ),
    (
        Stage.HOLDING,
        msgspec.structs.replace(BLENDING, steps_in_stage=9),
        {"blending_steps"},
        set(),
    ),
    (
        Stage.FOSSILIZED,
        measured(HOLDING, contribution_pp=None),
        {"contribution_measured", "contribution"},
        {"contribution_measured"},
    ),
    (Stage.FOSSILIZED, measured(HOLDING, contribution_pp=0.99), {"contribution"}, set()),
    (Stage.FOSSILIZED, measured(HOLDING, contribution_pp=-5.0), {"contribution"}, set()),
    (
        Stage.FOSSILIZED,
        measured(HOLDING, gradient=gradient(has_exploding=True)),
        {"gradient_finite"},
        {"gradient_finite"},
    ),
]


@pytest.mark.parametrize("rules", [STRICT, PERMISSIVE], ids=["strict", "permissive"])
@pytest.mark.parametrize("target", READY)
def test_gate_lets_a_ready_seed_pass(target: Stage, rules: LifecycleRules) -> None:
    result = evaluate_gate(READY[target], target, rules)

    assert result.passed
    assert (result.gate, result.target, result.checks_failed) == (
        GATE_FOR_TARGET[target],
        target,
        (),
    )


@pytest.mark.parametrize(("target", "seed", "strict", "permissive"), DEFECTS)
def test_gate_names_exactly_the_checks_that_fail(
    target: Stage, seed: SeedState, strict: set[str], permissive: set[str]
) -> None:
    for rules, expected in ((STRICT, strict), (PERMISSIVE, permissive)):
        result = evaluate_gate(seed, target, rules)
        assert set(result.checks_failed) == expected
        assert result.passed is not bool(expected)


def test_every_check_has_a_seed_that_fails_it() -> None:
    seen = {
        (GATE_FOR_TARGET[target], name)
        for target, _, strict, permissive in DEFECTS
        for name in strict | permissive
    }

    assert seen == {(gate, check.name) for gate in Gate for check in GATE_CHECKS[gate]}


@pytest.mark.parametrize(
    ("target", "seed", "score"),
    [
        (Stage.TRAINING, seed_in(Stage.GERMINATED), 1.0),
        (Stage.TRAINING, seed_in(Stage.TRAINING), 0.0),
        (Stage.BLENDING, TRAINING, 0.2),
        (Stage.BLENDING, measured(TRAINING, current_accuracy_pct=90.0), 1.0),
        (Stage.BLENDING, measured(TRAINING, current_accuracy_pct=10.0), 0.0),
        (Stage.HOLDING, seed_in(Stage.BLENDING), 0.5),
        (Stage.FOSSILIZED, HOLDING, 0.2),
        (Stage.FOSSILIZED, measured(HOLDING, contribution_pp=None), 0.0),
    ],
)
def test_score_is_the_share_of_the_way_to_the_gate(
    target: Stage, seed: SeedState, score: float
) -> None:
    assert evaluate_gate(seed, target, PERMISSIVE).score == pytest.approx(score)
