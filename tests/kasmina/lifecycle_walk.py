"""Random lives of seeds on the pure machine, with every state checked."""

import random
from dataclasses import dataclass, field

from esper.kasmina import lifecycle
from esper.kasmina.lifecycle import (
    Frozen,
    GateEvaluated,
    Germinated,
    ModuleDropped,
    StageChanged,
    Transition,
)
from esper.kasmina.seed import (
    GerminationRequest,
    PruneCause,
    Ramp,
    SeedState,
    with_accuracy,
    with_contribution,
    with_gradient,
)
from esper.leyline.actions import Blueprint, Style
from esper.leyline.alpha import AlphaCurve, AlphaMode
from esper.leyline.reports import GradientReading
from esper.leyline.stages import (
    COOLDOWN_STAGES,
    RETARGETABLE_STAGES,
    TRANSITIONS,
    Gate,
    LifecycleRules,
    Stage,
)

AUTO_FORWARD = ((), (Gate.G1,), (Gate.G1, Gate.G2), (Gate.G3,), (Gate.G1, Gate.G2, Gate.G3))
OPERATIONS = ("tick", "germinate", "advance", "fossilize", "prune", "schedule", "retarget")
WEIGHTS = (8, 4, 5, 2, 1, 1, 2)
TARGETS = (0.0, 0.5, 0.7, 1.0, 1.5)
CAUSE = PruneCause(reason="soak", initiator="policy")


def random_rules(rng: random.Random) -> LifecycleRules:
    """Draw rules whose dwell is short enough for many lives."""
    return LifecycleRules(
        permissive=rng.random() < 0.5,
        auto_forward=rng.choice(AUTO_FORWARD),
        min_training_steps=rng.choice((0, 1, 3, 10)),
        min_blending_steps=rng.choice((0, 2, 10)),
    )


def random_request(
    rng: random.Random, seed_id: str, blueprints: tuple[Blueprint, ...]
) -> GerminationRequest:
    """Draw a request, now and then one that must be refused."""
    return GerminationRequest(
        seed_id=seed_id if rng.random() < 0.95 else "",
        blueprint=rng.choice(blueprints),
        style=rng.choice(tuple(Style)),
        tempo_steps=rng.choice((1, 3, 5, 8)),
        alpha_target=rng.choice((*TARGETS[1:], 1.0, 1.0)),
    )


def random_ramp(rng: random.Random) -> Ramp:
    """Draw a ramp, immediate ones among them."""
    return Ramp(
        num_steps=rng.choice((0, 1, 3, 8)),
        curve=rng.choice(tuple(AlphaCurve)),
        steepness=rng.choice((6.0, 12.0, 24.0)),
    )


def random_gradient(rng: random.Random) -> GradientReading:
    """Draw a reading that mostly lets a seed pass."""
    return GradientReading(
        norm=rng.choice((1.0, 1.0, 1.0, float("nan"))),
        ratio=rng.choice((0.05, 0.5, 0.5)),
        health=rng.choice((0.5, 1.0, 1.0)),
        has_vanishing=False,
        has_exploding=rng.random() < 0.1,
    )


def measured_at_random(rng: random.Random, state: SeedState) -> SeedState:
    """Let a validation pass be remembered."""
    state = with_accuracy(state, rng.uniform(0.0, 100.0))
    state = with_contribution(state, rng.uniform(-3.0, 5.0))
    return with_gradient(state, random_gradient(rng)) if rng.random() < 0.5 else state


def check_state(state: SeedState | None) -> None:
    """Hold what must be true of a slot's content at any time."""
    if state is None:
        return
    alpha = state.alpha
    assert 0.0 <= alpha.alpha <= 1.0
    assert 0 <= alpha.steps_done <= alpha.steps_total
    if state.stage in COOLDOWN_STAGES | {Stage.GERMINATED, Stage.TRAINING}:
        assert alpha.alpha == 0.0
    if state.stage in {Stage.HOLDING, Stage.FOSSILIZED}:
        assert alpha.alpha == 1.0
    if alpha.mode is not AlphaMode.HOLD:
        assert state.stage is Stage.BLENDING
    is_doomed = state.stage is Stage.BLENDING and alpha.target == 0.0
    assert (state.pending_prune is not None) == is_doomed
    assert 0 <= state.steps_in_stage <= state.age_steps
    assert state.previous_stage is Stage.DORMANT or state.stage in TRANSITIONS[state.previous_stage]


def check_outcome(before: SeedState | None, outcome: Transition, *, is_tick: bool) -> int:
    """Hold what must be true of one step of the machine; return how many stages changed."""
    after = outcome.state
    check_state(after)
    stage = lifecycle.stage_of(before)
    num_changes = 0
    for effect in outcome.effects:
        if isinstance(effect, StageChanged):
            assert effect.from_stage is stage
            assert effect.to_stage in TRANSITIONS[stage]
        if isinstance(effect, StageChanged | Germinated):
            stage = effect.to_stage if isinstance(effect, StageChanged) else effect.seed.stage
            num_changes += 1
    assert stage is lifecycle.stage_of(after)
    drops = any(isinstance(effect, ModuleDropped) for effect in outcome.effects)
    assert drops == any(
        isinstance(effect, StageChanged) and effect.to_stage is Stage.PRUNED
        for effect in outcome.effects
    )
    if not outcome.succeeded:
        assert after is before
        assert all(
            isinstance(effect, GateEvaluated) and not effect.result.passed
            for effect in outcome.effects
        )
    if before is not None and after is not None:
        assert after.age_steps == before.age_steps + is_tick
        is_reported = any(isinstance(effect, Frozen) for effect in outcome.effects)
        assert is_reported == (before.is_frozen is not after.is_frozen and not drops)
    if before is not None and before.stage is Stage.FOSSILIZED:
        assert after is not None
        assert after.stage is Stage.FOSSILIZED
    return num_changes


@dataclass(eq=False, slots=True)
class PureWalk:
    """One slot's random lives on the pure machine."""

    rng: random.Random
    rules: LifecycleRules = field(default_factory=LifecycleRules)
    state: SeedState | None = None
    num_changes: int = 0
    num_operations: int = 0
    embargo_ticks: int = 0
    seen: set[tuple[Stage, Stage]] = field(default_factory=set)

    def run(self, num_changes: int) -> None:
        """Live until so many stages have changed."""
        while self.num_changes < num_changes:
            self.do_one(self.rng.choices(OPERATIONS, WEIGHTS)[0])

    def do_one(self, operation: str) -> None:
        """Ask for one thing and check what comes of it."""
        before = self.state
        if before is None or before.stage is Stage.FOSSILIZED:
            # A fossil's slot is full for good: from time to time another slot takes its turn.
            before = None if self.rng.random() < 0.3 else before
            self.rules = random_rules(self.rng) if before is None else self.rules
        elif self.rng.random() < 0.5:
            before = measured_at_random(self.rng, before)
        outcome = self._ask(operation, before)
        self.num_changes += check_outcome(before, outcome, is_tick=operation == "tick")
        self.num_operations += 1
        self._check_embargo(before, outcome, is_tick=operation == "tick")
        self.seen.add((lifecycle.stage_of(before), lifecycle.stage_of(outcome.state)))
        self.state = outcome.state

    def _ask(self, operation: str, state: SeedState | None) -> Transition:
        match operation:
            case "germinate":
                request = random_request(self.rng, f"s{self.num_changes}", tuple(Blueprint))
                return lifecycle.germinate(state, request, self.rules)
            case "advance":
                return lifecycle.advance(state, self.rules)
            case "fossilize":
                return lifecycle.fossilize(state, self.rules)
            case "prune":
                return lifecycle.prune(state, CAUSE)
            case "schedule":
                return lifecycle.schedule_prune(state, random_ramp(self.rng), CAUSE)
            case "retarget":
                target = self.rng.choice(TARGETS)
                outcome = lifecycle.set_alpha_target(state, target, random_ramp(self.rng))
                assert outcome.succeeded == self._is_retargetable(state, target)
                return outcome
            case _:
                return lifecycle.tick(state, self.rules)

    def _is_retargetable(self, state: SeedState | None, target: float) -> bool:
        if state is None or state.stage not in RETARGETABLE_STAGES:
            return False
        return state.alpha.mode is AlphaMode.HOLD and 0.0 < target <= 1.0

    def _check_embargo(
        self, before: SeedState | None, outcome: Transition, *, is_tick: bool
    ) -> None:
        if before is None or before.stage is not Stage.EMBARGOED:
            self.embargo_ticks = 0
            return
        self.embargo_ticks += is_tick
        has_ended = lifecycle.stage_of(outcome.state) is Stage.RESETTING
        assert has_ended == (self.embargo_ticks == self.rules.embargo_steps)
