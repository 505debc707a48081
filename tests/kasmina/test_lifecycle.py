"""The pure machine: what each operation does, what it refuses, and how time passes."""

import random
from collections.abc import Callable

import msgspec
import pytest
from tests.kasmina.lifecycle_walk import PureWalk
from tests.kasmina.seeds import CAUSE, OCCUPIED_STAGES, REQUEST, measured, seed_in

from esper.kasmina import lifecycle
from esper.kasmina.alpha_controller import parked, retarget
from esper.kasmina.lifecycle import (
    OPERATIONS,
    Fossilized,
    Frozen,
    GateEvaluated,
    Germinated,
    ModuleDropped,
    Operation,
    Pruned,
    StageChanged,
    Transition,
)
from esper.kasmina.seed import Ramp, SeedState
from esper.leyline.actions import Blueprint, Style
from esper.leyline.alpha import AlphaCurve, AlphaMode
from esper.leyline.stages import (
    COOLDOWN_STAGES,
    PRUNABLE_STAGES,
    TRANSITIONS,
    Gate,
    LifecycleRules,
    Stage,
)

RULES = LifecycleRules()
AUTOMATIC = LifecycleRules(auto_forward=(Gate.G1, Gate.G2, Gate.G3))
SLOWLY = Ramp(num_steps=3)
MOVING = retarget(parked(0.5), 1.0, 3)

ASK: dict[Operation, Callable[[SeedState | None], Transition]] = {
    Operation.GERMINATE: lambda seed: lifecycle.germinate(seed, REQUEST, RULES),
    Operation.ADVANCE: lambda seed: lifecycle.advance(seed, RULES),
    Operation.FOSSILIZE: lambda seed: lifecycle.fossilize(seed, RULES),
    Operation.PRUNE: lambda seed: lifecycle.prune(seed, CAUSE),
    Operation.SCHEDULE_PRUNE: lambda seed: lifecycle.schedule_prune(seed, SLOWLY, CAUSE),
    Operation.SET_ALPHA_TARGET: lambda seed: lifecycle.set_alpha_target(seed, 0.7, SLOWLY),
}


def live(state: SeedState | None) -> SeedState:
    assert state is not None
    return state


def ticked(state: SeedState | None, num_ticks: int = 1, rules: LifecycleRules = RULES) -> SeedState:
    for _ in range(num_ticks):
        state = lifecycle.tick(state, rules).state
    return live(state)


def kinds(outcome: Transition) -> list[type]:
    return [type(effect) for effect in outcome.effects]


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("stage", [Stage.DORMANT, *OCCUPIED_STAGES])
def test_operation_is_refused_exactly_outside_its_stages(
    operation: Operation, stage: Stage
) -> None:
    seed = None if stage is Stage.DORMANT else seed_in(stage)
    if operation is Operation.ADVANCE and stage is Stage.BLENDING:
        seed = seed_in(stage, alpha=parked(1.0))

    outcome = ASK[operation](seed)

    assert outcome.succeeded == (stage in OPERATIONS[operation].stages)
    if not outcome.succeeded:
        assert outcome == Transition(
            state=seed, refusal=f"cannot {operation.value} a seed in stage {stage.name}"
        )
        assert outcome.state is seed


@pytest.mark.parametrize("operation", [Operation.SCHEDULE_PRUNE, Operation.SET_ALPHA_TARGET])
def test_operation_that_moves_alpha_is_refused_while_it_moves(operation: Operation) -> None:
    seed = seed_in(Stage.BLENDING, alpha=MOVING)

    outcome = ASK[operation](seed)

    assert outcome.state is seed
    assert outcome.effects == ()
    assert outcome.refusal == f"cannot {operation.value} while alpha moves to 1.0"


@pytest.mark.parametrize("target", [0.0, -0.5, 1.01, float("nan")])
def test_alpha_target_out_of_range_is_refused(target: float) -> None:
    seed = seed_in(Stage.HOLDING)
    request = msgspec.structs.replace(REQUEST, alpha_target=target)

    assert lifecycle.set_alpha_target(seed, target, SLOWLY).state is seed
    assert not lifecycle.set_alpha_target(seed, target, SLOWLY).succeeded
    assert not lifecycle.germinate(None, request, RULES).succeeded


def test_germination_without_a_ramp_is_refused() -> None:
    request = msgspec.structs.replace(REQUEST, tempo_steps=0)

    assert lifecycle.germinate(None, request, RULES).state is None


def test_failed_gate_leaves_the_state_and_says_which_checks_failed() -> None:
    seed = measured(seed_in(Stage.TRAINING), gradient=None)

    outcome = lifecycle.advance(seed, RULES)

    assert outcome.state is seed
    assert kinds(outcome) == [GateEvaluated]
    assert outcome.refusal == (
        "gate G2 failed: gradient_measured, gradient_finite, gradient_health"
    )


def test_germination_of_the_placeholder_fails_its_gate() -> None:
    request = msgspec.structs.replace(REQUEST, blueprint=Blueprint.NOOP)

    outcome = lifecycle.germinate(None, request, RULES)

    assert (outcome.state, outcome.refusal) == (None, "gate G0 failed: blueprint")


# --- Operations ----------------------------------------------------------------------------------


def test_germination_plants_a_seed_that_remembers_the_request() -> None:
    request = msgspec.structs.replace(
        REQUEST, style=Style.GATED_GATE, tempo_steps=8, accuracy_pct=42.0
    )

    outcome = lifecycle.germinate(None, request, RULES)

    seed = live(outcome.state)
    assert kinds(outcome) == [GateEvaluated, Germinated]
    assert (seed.stage, seed.style, seed.tempo_steps) == (Stage.GERMINATED, Style.GATED_GATE, 8)
    assert seed.measured.accuracy_at_germination_pct == 42.0
    assert seed.measured.stage_improvement_pp == 0.0


def test_advance_to_blending_starts_the_first_ramp_with_the_style_curve() -> None:
    seed = seed_in(Stage.TRAINING, tempo_steps=8, alpha_target=0.7)

    blending = live(lifecycle.advance(seed, RULES).state)

    assert blending.stage is Stage.BLENDING
    assert (blending.alpha.alpha, blending.alpha.target) == (0.0, 0.7)
    assert (blending.alpha.curve, blending.alpha.steps_total) == (AlphaCurve.SIGMOID, 8)
    assert blending.measured.accuracy_at_blending_start_pct == 51.0


def test_advance_remembers_where_the_seed_was_and_starts_a_new_count() -> None:
    outcome = lifecycle.advance(seed_in(Stage.TRAINING, steps_in_stage=13), RULES)

    blending = live(outcome.state)
    assert (blending.previous_stage, blending.previous_stage_steps) == (Stage.TRAINING, 13)
    assert (blending.steps_in_stage, blending.age_steps) == (0, 30)
    assert blending.measured.stage_improvement_pp == 0.0
    assert outcome.effects[-1] == StageChanged(
        seed_id="s0",
        from_stage=Stage.TRAINING,
        to_stage=Stage.BLENDING,
        steps_in_from_stage=13,
        alpha=0.0,
        accuracy_delta_pp=1.0,
    )


def test_fossilization_reports_the_gate_the_change_and_the_fossil_in_this_order() -> None:
    outcome = lifecycle.fossilize(seed_in(Stage.HOLDING), RULES)

    assert kinds(outcome) == [GateEvaluated, StageChanged, Fossilized]
    assert live(outcome.state).stage is Stage.FOSSILIZED


@pytest.mark.parametrize("num_steps", [1, 4])
def test_fossil_knows_the_steps_in_which_it_was_planted_and_made_permanent(num_steps: int) -> None:
    request = msgspec.structs.replace(REQUEST, step=7)
    seed = live(lifecycle.germinate(None, request, RULES).state)
    for _ in range(num_steps):
        seed = live(lifecycle.tick(seed, RULES).state)
    held = msgspec.structs.replace(
        seed_in(Stage.HOLDING),
        germinated_at_step=seed.germinated_at_step,
        age_steps=seed.age_steps,
    )
    assert held.fossilized_at_step is None

    outcome = lifecycle.fossilize(held, RULES)

    fossil = live(outcome.state)
    assert (fossil.germinated_at_step, fossil.fossilized_at_step) == (7, 7 + num_steps)
    assert outcome.effects[-1] == Fossilized(fossil)


@pytest.mark.parametrize("stage", sorted(PRUNABLE_STAGES))
def test_prune_drops_the_module_and_reports_the_seeds_last_state(stage: Stage) -> None:
    seed = seed_in(stage)

    outcome = lifecycle.prune(seed, CAUSE)

    assert kinds(outcome) == [StageChanged, ModuleDropped, Pruned]
    assert outcome.effects[-1] == Pruned(seed, CAUSE)
    assert (live(outcome.state).stage, live(outcome.state).alpha.alpha) == (Stage.PRUNED, 0.0)


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING])
def test_scheduled_prune_without_alpha_is_immediate(stage: Stage) -> None:
    assert live(lifecycle.schedule_prune(seed_in(stage), SLOWLY, CAUSE).state).stage is Stage.PRUNED


def test_scheduled_prune_without_steps_is_immediate() -> None:
    outcome = lifecycle.schedule_prune(seed_in(Stage.HOLDING), Ramp(num_steps=0), CAUSE)

    assert live(outcome.state).stage is Stage.PRUNED


def test_scheduled_prune_of_a_held_seed_ramps_down_frozen_and_prunes_at_zero() -> None:
    outcome = lifecycle.schedule_prune(seed_in(Stage.HOLDING), SLOWLY, CAUSE)
    seed = live(outcome.state)

    assert kinds(outcome) == [StageChanged, Frozen]
    assert (seed.stage, seed.is_frozen) == (Stage.BLENDING, True)

    alphas = []
    for _ in range(2):
        seed = ticked(seed)
        alphas.append(seed.alpha.alpha)
    last = lifecycle.tick(seed, RULES)

    assert alphas == pytest.approx([2 / 3, 1 / 3])
    assert kinds(last) == [StageChanged, ModuleDropped, Pruned]
    assert isinstance(last.effects[-1], Pruned)
    assert last.effects[-1].cause == CAUSE
    assert live(last.state).pending_prune is None


def test_partial_target_sends_a_held_seed_back_to_blending_where_it_goes_on_learning() -> None:
    outcome = lifecycle.set_alpha_target(seed_in(Stage.HOLDING), 0.7, SLOWLY)

    assert kinds(outcome) == [StageChanged]
    seed = ticked(outcome.state, 2)
    assert not seed.is_frozen
    arrived = lifecycle.tick(seed, RULES)
    assert arrived.effects == ()
    assert (live(arrived.state).alpha.alpha, live(arrived.state).stage) == (0.7, Stage.BLENDING)


def test_full_target_keeps_a_held_seed_where_it_is() -> None:
    seed = seed_in(Stage.HOLDING)

    outcome = lifecycle.set_alpha_target(seed, 1.0, SLOWLY)

    assert outcome == Transition(state=seed)


def test_upward_target_does_not_freeze() -> None:
    outcome = lifecycle.set_alpha_target(seed_in(Stage.BLENDING), 1.0, SLOWLY)

    assert outcome.effects == ()
    assert live(outcome.state).alpha.mode is AlphaMode.UP


def test_instant_target_moves_alpha_at_once() -> None:
    outcome = lifecycle.set_alpha_target(seed_in(Stage.BLENDING), 1.0, Ramp(num_steps=0))

    assert live(outcome.state).alpha.is_at_target
    assert live(outcome.state).alpha.alpha == 1.0


def test_seed_parked_at_a_partial_target_reaches_holding_only_after_full_alpha() -> None:
    parked_seed = seed_in(Stage.BLENDING, alpha=parked(0.7))
    assert not lifecycle.advance(parked_seed, RULES).succeeded

    full = lifecycle.set_alpha_target(parked_seed, 1.0, SLOWLY).state

    assert live(lifecycle.advance(ticked(full, 3), RULES).state).stage is Stage.HOLDING


# --- Time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", OCCUPIED_STAGES)
def test_tick_counts_one_step_in_every_stage(stage: Stage) -> None:
    seed = measured(seed_in(stage, steps_in_stage=0), steps_since_contribution=2)

    after = ticked(seed)

    assert after.age_steps == seed.age_steps + 1
    assert after.steps_in_stage == 1
    assert after.measured.steps_since_contribution == 3


def test_tick_of_an_empty_slot_does_nothing() -> None:
    assert lifecycle.tick(None, RULES) == Transition(state=None)


def test_contribution_that_was_never_measured_never_ages() -> None:
    assert ticked(seed_in(Stage.TRAINING), 3).measured.steps_since_contribution is None


def test_cooldown_lasts_seven_ticks_five_of_them_embargo() -> None:
    state = lifecycle.prune(seed_in(Stage.HOLDING), CAUSE).state
    stages = []
    while state is not None:
        state = lifecycle.tick(state, RULES).state
        stages.append(lifecycle.stage_of(state))

    assert stages == [Stage.EMBARGOED] * 5 + [Stage.RESETTING, Stage.DORMANT]


def test_every_cooldown_move_is_reported() -> None:
    state: SeedState | None = seed_in(Stage.PRUNED)
    reported = []
    while state is not None:
        outcome = lifecycle.tick(state, RULES)
        reported += [
            effect.to_stage for effect in outcome.effects if isinstance(effect, StageChanged)
        ]
        state = outcome.state

    assert reported == [Stage.EMBARGOED, Stage.RESETTING, Stage.DORMANT]


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING, Stage.HOLDING])
def test_without_auto_forward_time_moves_no_seed_on(stage: Stage) -> None:
    assert ticked(seed_in(stage), 50).stage is stage


def test_auto_forward_carries_a_healthy_seed_to_holding_and_no_further() -> None:
    seed = live(lifecycle.germinate(None, REQUEST, AUTOMATIC).state)
    seed = msgspec.structs.replace(seed, measured=seed_in(Stage.TRAINING).measured)
    stages = []
    for _ in range(30):
        seed = ticked(seed, rules=AUTOMATIC)
        stages.append(seed.stage)

    assert stages.count(Stage.TRAINING) == AUTOMATIC.min_training_steps
    assert stages.count(Stage.BLENDING) == seed.tempo_steps
    assert set(stages) == {Stage.TRAINING, Stage.BLENDING, Stage.HOLDING}
    assert stages == sorted(stages)


def test_seed_germinated_in_a_step_is_training_after_its_tick() -> None:
    seed = lifecycle.germinate(None, REQUEST, AUTOMATIC).state

    assert ticked(seed, rules=AUTOMATIC).stage is Stage.TRAINING


def test_auto_forward_asks_no_gate_before_the_dwell_is_over() -> None:
    seed = seed_in(Stage.TRAINING, steps_in_stage=9)

    assert lifecycle.tick(seed, AUTOMATIC).effects == ()


def test_auto_forward_of_a_failing_seed_asks_again_each_step() -> None:
    seed = measured(seed_in(Stage.TRAINING), gradient=None)

    for _ in range(3):
        outcome = lifecycle.tick(seed, AUTOMATIC)
        assert kinds(outcome) == [GateEvaluated]
        seed = live(outcome.state)


def test_strict_auto_forward_waits_for_the_blending_dwell() -> None:
    rules = msgspec.structs.replace(AUTOMATIC, permissive=False)
    seed = seed_in(Stage.BLENDING, alpha=parked(1.0), steps_in_stage=9)

    assert lifecycle.tick(seed, rules).effects == ()
    assert ticked(seed, 2, rules).stage is Stage.HOLDING


# --- Walks ---------------------------------------------------------------------------------------


def test_fifty_thousand_random_transitions_show_no_illegal_state() -> None:
    walk = PureWalk(random.Random(20))

    walk.run(50_000)

    taken = {(start, end) for start, end in walk.seen if start is not end}
    edges = {(start, end) for start, ends in TRANSITIONS.items() for end in ends}
    assert taken == edges - {(Stage.UNKNOWN, Stage.DORMANT)}


def test_cooldown_stages_are_reached_through_prune_alone() -> None:
    entries = {
        start for start, ends in TRANSITIONS.items() if set(ends) & COOLDOWN_STAGES
    } - COOLDOWN_STAGES

    assert entries == PRUNABLE_STAGES
