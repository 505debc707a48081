"""The learning controller: one forward pass for all, two transfers, a memory of its own."""

import hashlib
from collections import Counter
from dataclasses import fields, replace

import pytest
import torch
from tests.builders.messages import env_evidence, make_report, make_signals
from tests.simic.training.builders import NUM_ENVS, RULES, Play, make_control, small_policy
from tests.tamiyo.states import SLOTS
from torch.overrides import TorchFunctionMode

from esper.leyline.actions import HEADS, Op
from esper.leyline.legality import is_legal
from esper.leyline.stages import Stage
from esper.simic.agent.rollout_buffer import RolloutBatch
from esper.simic.training.policy_controller import PolicyController, StepFacts
from esper.tamiyo.controllers.protocol import Choice, Situation
from esper.tamiyo.features import ActionFeedback, FeatureExtractor
from esper.tamiyo.masks import ActionMasker

WAITING = {"item", "cpu", "tolist", "__bool__", "__float__", "__int__", "__index__"}
"""Without numpy, which torch refuses for a tensor that is not on the host already."""


class CountingMode(TorchFunctionMode):
    """Counts the calls that bring numbers of a tensor to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in WAITING:
            self.calls[name] += 1
        return function(*args, **(kwargs or {}))


def situation(*, gone: int | None = None, step: int = 0) -> Situation:
    reports = [(make_report("r0c0", Stage.TRAINING),), (), (make_report("r0c1", Stage.HOLDING),)]
    signals = [make_signals(step=step, val_accuracy_pct=10.0 * env) for env in range(NUM_ENVS)]
    return Situation(
        round=0,
        step=step,
        observations=FeatureExtractor(SLOTS, 6).observe(
            signals, reports, [ActionFeedback()] * NUM_ENVS
        ),
        masks=ActionMasker(RULES).masks(reports),
        envs=tuple(
            None if env == gone else env_evidence(env, step, reports=reports[env])
            for env in range(NUM_ENVS)
        ),
    )


def test_a_decision_crosses_to_the_host_twice() -> None:
    policy = small_policy()
    with CountingMode() as mode:
        policy.choose(situation())

    assert mode.calls == {"tolist": 2}


def test_a_whole_step_of_control_crosses_no_more_often() -> None:
    play = Play(make_control())
    play.step()
    with CountingMode() as mode:
        play.step()

    assert mode.calls == {"tolist": 2}


def test_choices_are_legal_and_reported_as_they_were_made() -> None:
    policy = small_policy()
    for step in range(30):
        shown = situation(step=step)
        choice = policy.choose(shown)
        for env, action, detail in zip(shown.envs, choice.actions, choice.details, strict=True):
            assert is_legal(action, env.reports, RULES)
            assert detail.heads["op"].choice == action.op.name
            assert detail.heads["slot"].choice == action.slot_id
            assert list(detail.heads) == [head.value for head in HEADS]
            assert sum(detail.op_probabilities.values()) == pytest.approx(1.0, abs=1e-5)
            assert detail.op_probabilities[action.op.name] > 0
            legal = policy_legal(env.reports)
            assert detail.heads["op"].num_valid == len(legal)
            illegal = set(detail.op_probabilities) - legal
            assert all(detail.op_probabilities[op] == 0 for op in illegal)


def policy_legal(reports) -> set[str]:
    row = ActionMasker(RULES).masks([reports]).op[0].tolist()
    return {op.name for op in Op if row[op]}


def test_what_the_policy_saw_can_be_recognised_by_its_hash() -> None:
    shown = situation()
    choice = small_policy().choose(shown)

    for env_id, (action, detail) in enumerate(zip(choice.actions, choice.details, strict=True)):
        row = shown.observations.observations[env_id]
        expected = hashlib.sha256(row.numpy().tobytes()).hexdigest()[:16]
        assert detail.observation_hash == (None if action.op is Op.WAIT else expected)


@pytest.mark.parametrize("parts", [[[2], [0, 1]], [[1], [2], [0]], [[0, 2], [1]]])
def test_choices_are_the_same_to_the_last_bit_whoever_is_decided_with_whom(
    parts: list[list[int]],
) -> None:
    whole, split = small_policy(), small_policy()
    for step in range(3):
        shown = situation(step=step)
        together = whole.choose(shown)
        for part in parts:
            choice = split.choose(only(shown, part))
            assert [choice.actions[env] for env in part] == [together.actions[env] for env in part]
            assert [choice.details[env] for env in part] == [together.details[env] for env in part]
            assert sum(action is not None for action in choice.actions) == len(part)
        for policy in (whole, split):
            policy.remember(step, FACTS)

    assert torch.equal(whole.lstm_state.h, split.lstm_state.h)
    assert torch.equal(whole.lstm_state.c, split.lstm_state.c)
    for ours, theirs in zip(whole._raw_obs, split._raw_obs, strict=True):
        assert torch.equal(ours, theirs)
    for policy in (whole, split):
        policy.terminate(range(NUM_ENVS))
    assert_equal_rows(whole.agent.buffer.batch(), split.agent.buffer.batch())


FACTS = StepFacts(
    effective_ops=[Op.WAIT] * NUM_ENVS,
    is_forced=[False] * NUM_ENVS,
    rewards=[0.0] * NUM_ENVS,
    contributions=torch.zeros(NUM_ENVS, len(SLOTS)),
    is_measured=torch.zeros(NUM_ENVS, len(SLOTS), dtype=torch.bool),
    env_ids=range(NUM_ENVS),
)


def only(shown: Situation, env_ids: list[int]) -> Situation:
    """Return what control shows when only these envs are to be decided."""
    is_shown = torch.tensor([env in env_ids for env in range(NUM_ENVS)])
    observations = shown.observations.observations.where(is_shown.unsqueeze(1), torch.tensor(0.25))
    return replace(
        shown,
        observations=replace(shown.observations, observations=observations),
        envs=tuple(env if index in env_ids else None for index, env in enumerate(shown.envs)),
    )


def assert_equal_rows(ours: RolloutBatch, theirs: RolloutBatch) -> None:
    for item in fields(RolloutBatch):
        if item.name != "masks":
            assert torch.equal(getattr(ours, item.name), getattr(theirs, item.name)), item.name
    for item in fields(ours.masks):
        assert torch.equal(getattr(ours.masks, item.name), getattr(theirs.masks, item.name))


def play_three(policy: PolicyController, round_index: int, gone: int | None = None) -> list[Choice]:
    policy.begin_round(round_index)
    return [policy.choose(situation(step=step, gone=gone)) for step in range(3)]


def test_choices_depend_on_the_round_and_on_nothing_before_it() -> None:
    fresh, used = small_policy(), small_policy()
    play_three(used, 0)

    assert play_three(used, 1) == play_three(fresh, 1)
    assert play_three(used, 1) != play_three(fresh, 2)


def test_an_env_that_is_gone_keeps_its_row_and_gets_no_answer() -> None:
    whole, partial = play_three(small_policy(), 0), play_three(small_policy(), 0, gone=1)

    for before, after in zip(whole, partial, strict=True):
        assert after.actions[1] is None
        assert after.details[1] is None
        assert after.actions[::2] == before.actions[::2]


def test_a_greedy_policy_draws_nothing() -> None:
    policy = small_policy()
    policy.is_greedy = True

    assert play_three(policy, 0) == play_three(policy, 5)


def test_memory_is_carried_from_step_to_step_and_emptied_for_a_round() -> None:
    policy = small_policy()
    play_three(policy, 0)
    assert (policy.lstm_state.h.abs().sum(-1) > 0).all()
    policy.forget([0, 2])
    assert policy.lstm_state.c.abs().sum(-1).gt(0).tolist() == [False, True, False]

    policy.begin_round(1)

    assert policy.lstm_state.h.abs().sum() == 0


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()

    play_three(small_policy(), 0)

    assert torch.equal(torch.get_rng_state(), before)


def test_normalisers_are_frozen_in_the_rollout_and_learn_once_per_round() -> None:
    play = Play(make_control())
    learner = play.control.learner
    before = learner.obs_normalizer.state_dict(), learner.reward_normalizer.state_dict()
    play.finish()
    during = learner.obs_normalizer.state_dict(), learner.reward_normalizer.state_dict()

    play.control.learn()

    for old, now in zip(before, during, strict=True):
        assert all(torch.equal(old[name], now[name]) for name in old)
    assert int(learner.obs_normalizer.state_dict()["num_rounds"]) == 1
    assert int(learner.reward_normalizer.state_dict()["num_rounds"]) == 1


def test_a_restored_policy_goes_on_with_the_same_scales() -> None:
    play = Play(make_control())
    for step in range(6):
        play.step(deltas={0: 0.1 * step, 1: 0.2, 2: -0.3})
    play.control.learn()
    learner, other = play.control.learner, small_policy()

    other.load_state_dict(learner.state_dict())

    probe = torch.linspace(-3, 3, learner.obs_normalizer.mean.numel()).unsqueeze(0)
    assert torch.equal(
        other.obs_normalizer.normalize(probe), learner.obs_normalizer.normalize(probe)
    )
    assert torch.equal(
        other.reward_normalizer.normalize(probe), learner.reward_normalizer.normalize(probe)
    )
