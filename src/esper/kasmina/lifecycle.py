"""The seed's lifecycle as a pure state machine: state and operation give a new state and effects.

Counters: `tick` is called once per step, after the step's decision. It first applies the rules of
the stage and then increments, so that at every decision `steps_in_stage` is the number of training
passes that the seed has had in its stage.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from esper.kasmina import alpha_controller
from esper.kasmina.gates import evaluate_gate
from esper.kasmina.seed import GerminationRequest, Measurements, PruneCause, Ramp, SeedState
from esper.leyline.alpha import ALPHA_TOLERANCE, DEFAULT_STEEPNESS, AlphaMode, AlphaState
from esper.leyline.stages import (
    ADVANCEABLE_STAGES,
    PRUNABLE_STAGES,
    RETARGETABLE_STAGES,
    Gate,
    GateResult,
    LifecycleRules,
    Stage,
    is_legal_transition,
    next_stage,
)

__all__ = [
    "OPERATIONS",
    "Effect",
    "Fossilized",
    "Frozen",
    "GateEvaluated",
    "Germinated",
    "ModuleDropped",
    "Operation",
    "OperationRule",
    "Transition",
    "Pruned",
    "StageChanged",
    "advance",
    "fossilize",
    "germinate",
    "prune",
    "schedule_prune",
    "set_alpha_target",
    "stage_of",
    "tick",
]


class Operation(StrEnum):
    """The operations on a slot; the passing of steps is handled by `tick`."""

    GERMINATE = "germinate"
    ADVANCE = "advance"
    FOSSILIZE = "fossilize"
    PRUNE = "prune"
    SCHEDULE_PRUNE = "schedule_prune"
    SET_ALPHA_TARGET = "set_alpha_target"


class OperationRule(msgspec.Struct, frozen=True, kw_only=True):
    """When an operation is accepted, and what it does then."""

    stages: frozenset[Stage]
    """Stages in which it is accepted; DORMANT stands for an empty slot."""
    needs_rest: bool = False
    """Whether it is refused during an alpha ramp."""
    effect: str


OPERATIONS: Final[Mapping[Operation, OperationRule]] = {
    Operation.GERMINATE: OperationRule(
        stages=frozenset({Stage.DORMANT}),
        effect="evaluates G0, then builds the seed, checks its output shape and inserts it; if any "
        "of this fails, the slot is unchanged",
    ),
    Operation.ADVANCE: OperationRule(
        stages=ADVANCEABLE_STAGES,
        effect="evaluates the next stage's gate and enters the stage; BLENDING starts the first "
        "ramp, HOLDING sets alpha to 1",
    ),
    Operation.FOSSILIZE: OperationRule(
        stages=frozenset({Stage.HOLDING}),
        effect="evaluates G5, then makes the seed permanent; it continues to train",
    ),
    Operation.PRUNE: OperationRule(
        stages=PRUNABLE_STAGES, effect="removes the module immediately and starts the cooldown"
    ),
    Operation.SCHEDULE_PRUNE: OperationRule(
        stages=PRUNABLE_STAGES,
        needs_rest=True,
        effect="ramps alpha down to 0 with frozen parameters, then prunes; immediately if alpha is "
        "0 or the ramp has no steps",
    ),
    Operation.SET_ALPHA_TARGET: OperationRule(
        stages=RETARGETABLE_STAGES,
        needs_rest=True,
        effect="ramps alpha to a target above 0 with the same blending operator; a seed in HOLDING "
        "returns to BLENDING if the target is below 1",
    ),
}
"""The operations and their preconditions."""


class Germinated(msgspec.Struct, frozen=True):
    """A seed was planted."""

    seed: SeedState


class GateEvaluated(msgspec.Struct, frozen=True):
    """A gate was evaluated, by an operation or automatically."""

    seed_id: str
    result: GateResult


class StageChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A seed moved along one legal edge."""

    seed_id: str
    from_stage: Stage
    to_stage: Stage
    steps_in_from_stage: int
    alpha: float
    """The value before the transition."""
    accuracy_delta_pp: float | None


class Fossilized(msgspec.Struct, frozen=True):
    """A seed became permanent."""

    seed: SeedState


class Pruned(msgspec.Struct, frozen=True):
    """A seed was removed; `seed` is its last state."""

    seed: SeedState
    cause: PruneCause


class ModuleDropped(msgspec.Struct, frozen=True):
    """The seed's module and gate network are to be removed."""


class Frozen(msgspec.Struct, frozen=True):
    """The seed's parameters stop training, until it is pruned."""


Effect: TypeAlias = (
    Germinated | GateEvaluated | StageChanged | Fossilized | Pruned | ModuleDropped | Frozen
)


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an operation; a refused one leaves the state unchanged."""

    state: SeedState | None
    effects: tuple[Effect, ...] = ()
    refusal: str | None = None

    @property
    def succeeded(self) -> bool:
        """Return whether the operation was accepted."""
        return self.refusal is None


def stage_of(state: SeedState | None) -> Stage:
    """Return the stage of a slot's content; DORMANT when it is empty."""
    return Stage.DORMANT if state is None else state.stage


def germinate(
    state: SeedState | None, request: GerminationRequest, rules: LifecycleRules
) -> Transition:
    """Plant a seed in an empty slot."""
    refusal = _refusal(Operation.GERMINATE, state)
    if refusal is None and not 0.0 < request.alpha_target <= 1.0:
        refusal = f"alpha target {request.alpha_target} is not above 0 and at most 1"
    if refusal is None and request.tempo_steps < 1:
        refusal = f"a first ramp of {request.tempo_steps} steps is too short"
    if refusal is not None:
        return Transition(state=state, refusal=refusal)
    seed = SeedState(
        seed_id=request.seed_id,
        blueprint=request.blueprint,
        style=request.style,
        tempo_steps=request.tempo_steps,
        alpha_target=request.alpha_target,
        stage=Stage.GERMINATED,
        previous_stage=Stage.DORMANT,
        germinated_at_step=request.step,
        is_sterile=request.is_sterile,
        measured=Measurements(
            accuracy_at_germination_pct=request.accuracy_pct,
            accuracy_at_stage_start_pct=request.accuracy_pct,
            current_accuracy_pct=request.accuracy_pct,
        ),
    )
    # The gate is asked about the seed that would be planted: an empty slot has nothing to evaluate.
    gate = GateEvaluated(seed.seed_id, evaluate_gate(seed, Stage.GERMINATED, rules))
    if not gate.result.passed:
        return Transition(state=None, effects=(gate,), refusal=_gate_refusal(gate.result))
    return Transition(state=seed, effects=(gate, Germinated(seed)))


def advance(state: SeedState | None, rules: LifecycleRules) -> Transition:
    """Evaluate the gate to TRAINING, BLENDING or HOLDING, and advance if it passes."""
    refusal = _refusal(Operation.ADVANCE, state)
    if state is None or refusal is not None:
        return Transition(state=state, refusal=refusal)
    return _pass_gate(state, rules)


def fossilize(state: SeedState | None, rules: LifecycleRules) -> Transition:
    """Make a seed in HOLDING permanent if its gate passes."""
    refusal = _refusal(Operation.FOSSILIZE, state)
    if state is None or refusal is not None:
        return Transition(state=state, refusal=refusal)
    outcome = _pass_gate(state, rules)
    if outcome.state is None or not outcome.succeeded:
        return outcome
    # A seed ages by one per step from its germination on, so the current step follows from its age.
    step = state.germinated_at_step + state.age_steps
    fossil = msgspec.structs.replace(outcome.state, fossilized_at_step=step)
    return Transition(state=fossil, effects=(*outcome.effects, Fossilized(fossil)))


def prune(state: SeedState | None, cause: PruneCause) -> Transition:
    """Remove a seed immediately."""
    refusal = _refusal(Operation.PRUNE, state)
    if state is None or refusal is not None:
        return Transition(state=state, refusal=refusal)
    # The record of the seed stays until the cooldown ends; alpha is reset with it, because a frozen
    # seed in mid-ramp would otherwise keep its direction into the cooldown.
    pruned = _moved(state, Stage.PRUNED, alpha=AlphaState(), pending_prune=None)
    effects = (_change(state, Stage.PRUNED), ModuleDropped(), Pruned(state, cause))
    return Transition(state=pruned, effects=effects)


def schedule_prune(state: SeedState | None, ramp: Ramp, cause: PruneCause) -> Transition:
    """Ramp alpha down and remove the seed when it is at 0."""
    refusal = _refusal(Operation.SCHEDULE_PRUNE, state)
    if state is None or refusal is not None:
        return Transition(state=state, refusal=refusal)
    # A seed that does not contribute to the output has nothing to ramp down.
    if ramp.num_steps <= 0 or state.alpha.alpha <= 0.0:
        return prune(state, cause)
    return _ramp(state, 0.0, ramp, cause)


def set_alpha_target(state: SeedState | None, target: float, ramp: Ramp) -> Transition:
    """Start a ramp of alpha to another target."""
    refusal = _refusal(Operation.SET_ALPHA_TARGET, state)
    if refusal is None and not 0.0 < target <= 1.0:
        refusal = f"alpha target {target} is not above 0 and at most 1; prune a seed to reach 0"
    if refusal is None and ramp.num_steps < 0:
        refusal = f"a ramp of {ramp.num_steps} steps does not exist"
    if state is None or refusal is not None:
        return Transition(state=state, refusal=refusal)
    # Accepted without effect: a ramp over no distance would send the seed back to BLENDING, where
    # it would have to pass G3 again.
    if state.stage is Stage.HOLDING and target == state.alpha.alpha:
        return Transition(state=state)
    return _ramp(state, target, ramp, None)


def tick(state: SeedState | None, rules: LifecycleRules) -> Transition:
    """Advance by one step: auto-forward, ramp, cooldown, and counters."""
    if state is None:
        return Transition(state=None)
    # Rules before counters: a stage that was entered in this tick then counts its first step, which
    # is the training pass that follows.
    outcome = _stage_tick(state, rules)
    return Transition(state=_counted(outcome.state), effects=outcome.effects)


def _stage_tick(state: SeedState, rules: LifecycleRules) -> Transition:
    match state.stage:
        case Stage.GERMINATED if Gate.G1 in rules.auto_forward:
            return _pass_gate(state, rules)
        case Stage.TRAINING if _may_leave_training(state, rules):
            return _pass_gate(state, rules)
        case Stage.BLENDING:
            return _blending_tick(state, rules)
        case Stage.PRUNED:
            return _cooled(state, Stage.EMBARGOED)
        case Stage.EMBARGOED if state.steps_in_stage >= rules.embargo_steps:
            return _cooled(state, Stage.RESETTING)
        case Stage.RESETTING if state.steps_in_stage >= rules.resetting_steps:
            return Transition(state=None, effects=(_change(state, Stage.DORMANT),))
        case _:
            return Transition(state=state)


def _blending_tick(state: SeedState, rules: LifecycleRules) -> Transition:
    # Alpha moves before the gate is asked: on the last step of a ramp the seed leaves the stage in
    # the same tick.
    moved = msgspec.structs.replace(state, alpha=alpha_controller.step(state.alpha))
    if not moved.alpha.is_at_target:
        return Transition(state=moved)
    # The scheduled prune wins over an automatic gate: alpha has arrived at 0, and G3 would ask for
    # 1.
    if moved.pending_prune is not None:
        return prune(moved, moved.pending_prune)
    if _may_leave_blending(moved, rules):
        outcome = _pass_gate(moved, rules)
        return Transition(state=outcome.state, effects=outcome.effects)
    return Transition(state=moved)


def _may_leave_training(state: SeedState, rules: LifecycleRules) -> bool:
    return Gate.G2 in rules.auto_forward and state.steps_in_stage >= rules.min_training_steps


def _may_leave_blending(state: SeedState, rules: LifecycleRules) -> bool:
    # Skip seeds whose gate would certainly fail, so that no failed evaluation is emitted each step.
    is_due = rules.permissive or state.steps_in_stage >= rules.min_blending_steps
    return Gate.G3 in rules.auto_forward and is_due and state.alpha.target >= 1.0 - ALPHA_TOLERANCE


def _pass_gate(state: SeedState, rules: LifecycleRules) -> Transition:
    target = next_stage(state.stage)
    assert target is not None, f"no stage follows {state.stage.name}"
    gate = GateEvaluated(state.seed_id, evaluate_gate(state, target, rules))
    if not gate.result.passed:
        return Transition(state=state, effects=(gate,), refusal=_gate_refusal(gate.result))
    return Transition(state=_entered(state, target), effects=(gate, _change(state, target)))


def _entered(state: SeedState, target: Stage) -> SeedState:
    match target:
        case Stage.BLENDING:
            alpha = alpha_controller.retarget(
                state.alpha,
                state.alpha_target,
                state.tempo_steps,
                curve=state.style.curve,
                steepness=DEFAULT_STEEPNESS,
            )
            accuracy = state.measured.current_accuracy_pct
            measured = msgspec.structs.replace(
                state.measured, accuracy_at_blending_start_pct=accuracy
            )
            return _moved(msgspec.structs.replace(state, measured=measured), target, alpha=alpha)
        # G3 admits alpha within a tolerance of 1; from here on it is 1 to the bit, so that a cross-
        # fade is exactly the seed's output.
        case Stage.HOLDING:
            return _moved(state, target, alpha=alpha_controller.parked(1.0))
        case _:
            return _moved(state, target)


def _ramp(state: SeedState, target: float, ramp: Ramp, cause: PruneCause | None) -> Transition:
    alpha = alpha_controller.retarget(
        state.alpha, target, ramp.num_steps, curve=ramp.curve, steepness=ramp.steepness
    )
    changes: tuple[Effect, ...] = () if cause is None else (Frozen(),)
    # A seed in HOLDING has a parked alpha by definition, so a new ramp first takes it back to
    # BLENDING.
    ramping = state
    if state.stage is Stage.HOLDING:
        changes = (_change(state, Stage.BLENDING), *changes)
        ramping = _moved(state, Stage.BLENDING)
    ramping = msgspec.structs.replace(ramping, alpha=alpha, pending_prune=cause)
    return Transition(state=ramping, effects=changes)


def _cooled(state: SeedState, to_stage: Stage) -> Transition:
    return Transition(state=_moved(state, to_stage), effects=(_change(state, to_stage),))


def _moved(state: SeedState, to_stage: Stage, **changes: object) -> SeedState:
    assert is_legal_transition(state.stage, to_stage), f"{state.stage.name} to {to_stage.name}"
    measured = msgspec.structs.replace(
        state.measured, accuracy_at_stage_start_pct=state.measured.current_accuracy_pct
    )
    return msgspec.structs.replace(
        state,
        stage=to_stage,
        previous_stage=state.stage,
        previous_stage_steps=state.steps_in_stage,
        steps_in_stage=0,
        measured=measured,
        **changes,
    )


def _change(state: SeedState, to_stage: Stage) -> StageChanged:
    return StageChanged(
        seed_id=state.seed_id,
        from_stage=state.stage,
        to_stage=to_stage,
        steps_in_from_stage=state.steps_in_stage,
        alpha=state.alpha.alpha,
        accuracy_delta_pp=state.measured.stage_improvement_pp,
    )


def _counted(state: SeedState | None) -> SeedState | None:
    if state is None:
        return None
    # Not every pass measures every seed; the policy sees how old its contribution is.
    since = state.measured.steps_since_contribution
    measured = state.measured
    if since is not None:
        measured = msgspec.structs.replace(measured, steps_since_contribution=since + 1)
    return msgspec.structs.replace(
        state,
        steps_in_stage=state.steps_in_stage + 1,
        age_steps=state.age_steps + 1,
        measured=measured,
    )


def _refusal(operation: Operation, state: SeedState | None) -> str | None:
    rule, stage = OPERATIONS[operation], stage_of(state)
    if stage not in rule.stages:
        return f"cannot {operation.value} a seed in stage {stage.name}"
    if rule.needs_rest and state is not None and state.alpha.mode is not AlphaMode.HOLD:
        return f"cannot {operation.value} while alpha moves to {state.alpha.target}"
    return None


def _gate_refusal(result: GateResult) -> str:
    return f"gate {result.gate.name} failed: {', '.join(result.checks_failed)}"
