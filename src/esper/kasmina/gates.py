"""The gates of the lifecycle: one table of checks, for strict and permissive mode."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from esper.kasmina.seed import SeedState
from esper.leyline.actions import Blueprint
from esper.leyline.alpha import ALPHA_TOLERANCE
from esper.leyline.stages import GATE_FOR_TARGET, Gate, GateResult, LifecycleRules, Stage

__all__ = ["GATE_CHECKS", "Check", "evaluate_gate"]


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of a gate."""

    name: str
    """Its name in events."""
    text: str
    """The condition in words; names of `LifecycleRules` fields in braces are filled in."""
    holds: Callable[[SeedState, LifecycleRules], bool]
    is_strict_only: bool = False
    is_permissive_only: bool = False

    def applies(self, rules: LifecycleRules) -> bool:
        """Return whether the check applies in the rules' mode."""
        return not (self.is_strict_only if rules.permissive else self.is_permissive_only)


def _has_id(state: SeedState, _rules: LifecycleRules) -> bool:
    return bool(state.seed_id)


def _has_blueprint(state: SeedState, _rules: LifecycleRules) -> bool:
    return state.blueprint != Blueprint.NOOP


def _is_germinated(state: SeedState, _rules: LifecycleRules) -> bool:
    return state.stage is Stage.GERMINATED


def _has_trained_long_enough(state: SeedState, rules: LifecycleRules) -> bool:
    return state.steps_in_stage >= rules.min_training_steps


def _has_improved(state: SeedState, rules: LifecycleRules) -> bool:
    improvement = state.measured.stage_improvement_pp
    return improvement is not None and improvement >= rules.min_training_improvement_pp


def _has_gradient_ratio(state: SeedState, rules: LifecycleRules) -> bool:
    gradient = state.measured.gradient
    return gradient is not None and gradient.ratio >= rules.min_gradient_ratio


def _has_gradient(state: SeedState, _rules: LifecycleRules) -> bool:
    return state.measured.gradient is not None


def _is_not_exploding(state: SeedState, _rules: LifecycleRules) -> bool:
    gradient = state.measured.gradient
    return gradient is not None and not gradient.has_exploding and math.isfinite(gradient.norm)


def _has_healthy_gradient(state: SeedState, rules: LifecycleRules) -> bool:
    gradient = state.measured.gradient
    return gradient is not None and gradient.health >= rules.min_gradient_health


def _aims_at_full_alpha(state: SeedState, _rules: LifecycleRules) -> bool:
    return state.alpha.target >= 1.0 - ALPHA_TOLERANCE


def _has_arrived(state: SeedState, _rules: LifecycleRules) -> bool:
    return state.alpha.is_at_target


def _has_blended_long_enough(state: SeedState, rules: LifecycleRules) -> bool:
    return state.steps_in_stage >= rules.min_blending_steps


def _has_contribution(state: SeedState, _rules: LifecycleRules) -> bool:
    return state.measured.contribution_pp is not None


def _contributes_enough(state: SeedState, rules: LifecycleRules) -> bool:
    contribution = state.measured.contribution_pp
    return contribution is not None and contribution >= rules.min_fossilize_contribution_pp


_NOT_EXPLODING: Final = Check(
    "gradient_finite", "gradient measured, finite and not exploding", _is_not_exploding
)

GATE_CHECKS: Final[Mapping[Gate, tuple[Check, ...]]] = {
    Gate.G0: (
        Check("seed_id", "the seed has an id", _has_id),
        Check("blueprint", "the blueprint is not `noop`", _has_blueprint),
    ),
    Gate.G1: (Check("germinated", "the seed is in stage GERMINATED", _is_germinated),),
    Gate.G2: (
        Check(
            "training_steps",
            "at least {min_training_steps} steps in the stage",
            _has_trained_long_enough,
        ),
        Check(
            "improvement",
            "the host's accuracy rose by at least {min_training_improvement_pp} pp in the stage",
            _has_improved,
            is_strict_only=True,
        ),
        Check(
            "gradient_ratio",
            "gradient measured, and its ratio to the host's at least {min_gradient_ratio}",
            _has_gradient_ratio,
            is_strict_only=True,
        ),
        Check("gradient_measured", "gradient measured", _has_gradient, is_permissive_only=True),
        Check(_NOT_EXPLODING.name, _NOT_EXPLODING.text, _is_not_exploding, is_permissive_only=True),
        Check(
            "gradient_health",
            "gradient health at least {min_gradient_health}",
            _has_healthy_gradient,
            is_permissive_only=True,
        ),
    ),
    Gate.G3: (
        Check("alpha_target", "the target of alpha is 1", _aims_at_full_alpha),
        Check("alpha_arrived", "alpha has reached its target", _has_arrived),
        Check(
            "blending_steps",
            "at least {min_blending_steps} steps in the stage",
            _has_blended_long_enough,
            is_strict_only=True,
        ),
    ),
    Gate.G5: (
        Check("contribution_measured", "contribution measured", _has_contribution),
        _NOT_EXPLODING,
        Check(
            "contribution",
            "contribution at least {min_fossilize_contribution_pp} pp",
            _contributes_enough,
            is_strict_only=True,
        ),
    ),
}
"""The checks of each gate."""


def evaluate_gate(state: SeedState, target: Stage, rules: LifecycleRules) -> GateResult:
    """Evaluate the gate for the transition to `target`."""
    gate = GATE_FOR_TARGET[target]
    checks = [check for check in GATE_CHECKS[gate] if check.applies(rules)]
    failed = tuple(check.name for check in checks if not check.holds(state, rules))
    return GateResult(
        gate=gate,
        target=target,
        passed=not failed,
        score=_score(gate, state, is_passed=not failed),
        checks_passed=tuple(check.name for check in checks if check.name not in failed),
        checks_failed=failed,
    )


def _score(gate: Gate, state: SeedState, *, is_passed: bool) -> float:
    match gate:
        case Gate.G0 | Gate.G1:
            return float(is_passed)
        case Gate.G2:
            # An improvement of 5 percentage points counts as complete; scores are shown, never
            # compared with a threshold.
            return _clamped((state.measured.stage_improvement_pp or 0.0) / 5.0)
        case Gate.G3:
            return state.alpha.alpha
        case Gate.G5:
            return _clamped((state.measured.contribution_pp or 0.0) / 10.0)


def _clamped(value: float) -> float:
    return min(max(value, 0.0), 1.0)
