"""Any sequence of requests and steps keeps a slot lawful; a failing one is shrunk to its core."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.kasmina.lifecycle_walk import AUTO_FORWARD, check_outcome
from tests.kasmina.seeds import CAUSE, HEALTHY

from esper.kasmina import lifecycle
from esper.kasmina.lifecycle import Transition
from esper.kasmina.seed import (
    GerminationRequest,
    Ramp,
    SeedState,
    with_accuracy,
    with_contribution,
    with_gradient,
)
from esper.leyline.actions import Blueprint, Style
from esper.leyline.alpha import AlphaCurve
from esper.leyline.stages import LifecycleRules

ramps = st.builds(Ramp, num_steps=st.integers(0, 4), curve=st.sampled_from(AlphaCurve))
requests = st.builds(
    GerminationRequest,
    seed_id=st.sampled_from(["", "s"]),
    blueprint=st.sampled_from(Blueprint),
    style=st.sampled_from(Style),
    tempo_steps=st.integers(0, 4),
    alpha_target=st.sampled_from([0.0, 0.5, 1.0]),
)
rule_sets = st.builds(
    LifecycleRules,
    permissive=st.booleans(),
    auto_forward=st.sampled_from(AUTO_FORWARD),
    min_training_steps=st.integers(0, 2),
    min_blending_steps=st.integers(0, 2),
    embargo_steps=st.integers(1, 3),
)


class LifecycleMachine(RuleBasedStateMachine):
    """One slot under arbitrary treatment."""

    @initialize(rules=rule_sets)
    def settle(self, rules: LifecycleRules) -> None:
        self.rules = rules
        self.state: SeedState | None = None

    def accept(self, outcome: Transition, *, is_tick: bool = False) -> None:
        check_outcome(self.state, outcome, is_tick=is_tick)
        self.state = outcome.state

    @rule(request=requests)
    def germinate(self, request: GerminationRequest) -> None:
        self.accept(lifecycle.germinate(self.state, request, self.rules))

    @rule()
    def advance(self) -> None:
        self.accept(lifecycle.advance(self.state, self.rules))

    @rule()
    def fossilize(self) -> None:
        self.accept(lifecycle.fossilize(self.state, self.rules))

    @rule()
    def prune(self) -> None:
        self.accept(lifecycle.prune(self.state, CAUSE))

    @rule(ramp=ramps)
    def schedule_prune(self, ramp: Ramp) -> None:
        self.accept(lifecycle.schedule_prune(self.state, ramp, CAUSE))

    @rule(ramp=ramps, alpha=st.sampled_from([0.0, 0.5, 0.7, 1.0]))
    def set_alpha_target(self, ramp: Ramp, alpha: float) -> None:
        self.accept(lifecycle.set_alpha_target(self.state, alpha, ramp))

    @rule(num_ticks=st.integers(1, 6))
    def tick(self, num_ticks: int) -> None:
        for _ in range(num_ticks):
            self.accept(lifecycle.tick(self.state, self.rules), is_tick=True)

    @rule(accuracy_pct=st.floats(0, 100), contribution_pp=st.floats(-5, 5), health=st.floats(0, 1))
    def measure(self, accuracy_pct: float, contribution_pp: float, health: float) -> None:
        if self.state is not None:
            state = with_accuracy(self.state, accuracy_pct)
            state = with_contribution(state, contribution_pp)
            self.state = with_gradient(state, msgspec.structs.replace(HEALTHY, health=health))


TestLifecycleMachine = LifecycleMachine.TestCase
TestLifecycleMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
