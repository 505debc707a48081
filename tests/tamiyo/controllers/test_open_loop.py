"""Schedules are carried out to the step, and random acts as often as the policy's."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.messages import make_report
from tests.tamiyo.controllers.situations import RULES, chosen, evidence_of, situation_of
from tests.tamiyo.states import SLOTS

from esper.leyline.actions import ActionSpec, Blueprint, Op
from esper.leyline.legality import is_legal
from esper.leyline.stages import Stage
from esper.tamiyo.controllers.open_loop import MatchedController, ScheduleController

WAIT = ActionSpec(slot_id=SLOTS[0])
PLANT = ActionSpec(op=Op.GERMINATE, slot_id=SLOTS[1], blueprint=Blueprint.CONV_SMALL)
NUM_STEPS = 30


def test_scheduled_action_is_carried_out_in_its_step_only() -> None:
    controller = ScheduleController(RULES, [{4: PLANT}])

    done = [chosen(controller, evidence_of(), step=step) for step in range(8)]

    assert done == [[PLANT] if step == 4 else [WAIT] for step in range(8)]


def test_one_schedule_serves_all_envs_and_several_one_each() -> None:
    shared, own = ([{0: PLANT}], [{0: PLANT}, {}])
    envs = [evidence_of(), evidence_of()]

    assert chosen(ScheduleController(RULES, shared), *envs, step=0) == [PLANT, PLANT]
    assert chosen(ScheduleController(RULES, own), *envs, step=0) == [PLANT, WAIT]


def test_scheduled_action_that_is_illegal_is_dropped() -> None:
    taken = evidence_of(0, (make_report(slot_id=SLOTS[1], stage=Stage.TRAINING),))

    assert chosen(ScheduleController(RULES, [{0: PLANT}]), taken, step=0) == [WAIT]


@settings(max_examples=60)
@given(acts=st.integers(0, NUM_STEPS), seed=st.integers(0, 1000))
def test_random_matched_acts_exactly_as_often_as_asked(acts: int, seed: int) -> None:
    controller = MatchedController(RULES, seed, NUM_STEPS, [{Op.GERMINATE: acts}])
    controller.begin_round(0)

    # Every slot stays empty, so that the act is legal in every step.
    done = [chosen(controller, evidence_of(), step=step)[0] for step in range(NUM_STEPS)]

    assert Counter(action.op for action in done)[Op.GERMINATE] == acts
    assert all(is_legal(action, (), RULES) for action in done)


def test_random_matched_spreads_acts_evenly_over_the_steps() -> None:
    found: Counter[int] = Counter()
    # Envs share what a step shows, which takes longer than a choice; each has its own stream.
    envs = [evidence_of(env_id) for env_id in range(20)]
    for seed in range(30):
        controller = MatchedController(RULES, seed, NUM_STEPS, [{Op.GERMINATE: 3}] * len(envs))
        for step in range(NUM_STEPS):
            actions = chosen(controller, *envs, step=step)
            found[step] += sum(action.op is Op.GERMINATE for action in actions)

    # 60 expected in each step, with a standard deviation of 7.3.
    assert min(found.values()) > 60 - 5 * 7.3
    assert max(found.values()) < 60 + 5 * 7.3


def test_act_that_is_not_legal_yet_is_kept_for_later() -> None:
    controller = MatchedController(RULES, 1, 3, [{Op.PRUNE: 1}])
    old = evidence_of(0, (make_report(slot_id=SLOTS[0], stage=Stage.BLENDING, age_steps=90),))

    done = [
        chosen(controller, env, step=step)[0].op for step, env in enumerate([evidence_of()] * 2)
    ]
    done += [chosen(controller, old, step=2)[0].op]

    assert done == [Op.WAIT, Op.WAIT, Op.PRUNE]


@pytest.mark.parametrize("env_id", [0, 1])
def test_quarantined_env_gets_no_action(env_id: int) -> None:
    envs = [None if index == env_id else evidence_of() for index in range(2)]
    for controller in (
        ScheduleController(RULES, [{0: PLANT}]),
        MatchedController(RULES, 1, 1, [{Op.GERMINATE: 1}] * 2),
    ):
        actions = controller.choose(situation_of(*envs, step=0)).actions
        assert [action is None for action in actions] == [index == env_id for index in range(2)]
