"""What is chosen for an env does not depend on which others are decided in the same call."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tamiyo.controllers.situations import RULES, evidences, situation_of
from tests.tamiyo.states import SLOTS, envs, signals

from esper.leyline.actions import ActionSpec, Blueprint, Op
from esper.leyline.schedules import ThresholdRule
from esper.tamiyo.controllers.baselines import PeriodicController, RandomController, WaitController
from esper.tamiyo.controllers.heuristic import HeuristicController, HeuristicRules
from esper.tamiyo.controllers.open_loop import MatchedController, ScheduleController
from esper.tamiyo.controllers.protocol import Controller
from esper.tamiyo.controllers.threshold import ThresholdController

NUM_ENVS, NUM_STEPS = 3, 6
PLANT = ActionSpec(op=Op.GERMINATE, slot_id=SLOTS[1], blueprint=Blueprint.CONV_SMALL)
RULE = ThresholdRule(
    slots=(SLOTS[1], SLOTS[0]),
    blueprint="conv_small",
    style="gated_gate",
    first_step=1,
    last_step=9,
    after_steps=2,
    keep_above_pp=2.0,
    prune_below_pp=-1.0,
)
MAKERS: dict[str, Callable[[], Controller]] = {
    "wait": lambda: WaitController(RULES),
    "random": lambda: RandomController(RULES, 3),
    "periodic": lambda: PeriodicController(RULES, 2),
    "heuristic": lambda: HeuristicController(RULES, HeuristicRules(patience_steps=1)),
    "threshold": lambda: ThresholdController(RULES, RULE),
    "schedule": lambda: ScheduleController(RULES, [{0: PLANT}, {3: PLANT}, {}]),
    "matched": lambda: MatchedController(
        RULES, 3, NUM_STEPS, [{Op.GERMINATE: 4, Op.PRUNE: 2, Op.ADVANCE: 3}] * NUM_ENVS
    ),
}
episodes = st.lists(
    st.lists(st.tuples(signals, st.just(()) | envs), min_size=NUM_ENVS, max_size=NUM_ENVS),
    min_size=3,
    max_size=NUM_STEPS,
)
orders = st.lists(st.permutations(range(NUM_ENVS)), min_size=NUM_STEPS, max_size=NUM_STEPS)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=8)
@given(episode=episodes, orders=orders, num_first=st.integers(1, NUM_ENVS - 1))
def test_choices_are_the_same_whoever_is_decided_with_whom(
    name: str, episode: list, orders: list[list[int]], num_first: int
) -> None:
    together, apart = MAKERS[name](), MAKERS[name]()
    for step, (shown, order) in enumerate(zip(episode, orders, strict=False)):
        seen = evidences(shown)
        expected = together.choose(situation_of(*seen, step=step)).actions
        for part in (order[:num_first], order[num_first:]):
            some = [env if index in part else None for index, env in enumerate(seen)]
            found = apart.choose(situation_of(*some, step=step)).actions
            assert [found[index] for index in part] == [expected[index] for index in part]
