"""One env's state: sums over a pass, its row of the policy's memory, its seed that is furthest."""

from dataclasses import dataclass, field

import pytest
import torch
from tests.simic.training.envs import SLOTS, context_for, grow, world_of

from esper.leyline.messages import LstmRow
from esper.leyline.stages import Stage
from esper.simic.training.env_factory import create_env_state
from esper.simic.training.parallel_env_state import Accumulators
from esper.tolaria.fences import CpuFence


@dataclass(eq=False)
class StreamingFence(CpuFence):
    stream: object = field(default_factory=object)


def test_a_stream_without_a_cuda_device_is_refused() -> None:
    context = context_for(fences=[StreamingFence()])
    with pytest.raises(ValueError, match="env 0: a CUDA stream cannot serve cpu"):
        create_env_state(context, 0, 0)


def test_an_env_without_a_stream_has_none() -> None:
    assert world_of().env.stream is None


def test_means_are_those_of_all_predictions_whatever_the_sizes_of_their_batches() -> None:
    sums = Accumulators.zeros(2, torch.device("cpu"))
    sums.add(torch.tensor([1.0, 2.0]), torch.tensor([3, 4]), 4)
    sums.add(torch.tensor([2.5, 8.0]), torch.tensor([1, 0]), 2)
    assert sums.materialize_means() == (
        [pytest.approx(1.5), pytest.approx(4.0)],
        [pytest.approx(100 * 4 / 6), pytest.approx(100 * 4 / 6)],
    )
    assert sums.total == 6


def test_a_sum_keeps_no_graph() -> None:
    sums = Accumulators.zeros(1, torch.device("cpu"))
    sums.add(torch.ones((), requires_grad=True) * 2, torch.tensor(1), 1)
    assert not sums.loss.requires_grad


def test_a_step_starts_with_empty_sums_and_keeps_the_episodes() -> None:
    world = world_of()
    world.wait()
    env = world.env
    env.epoch_counts["r0c0"] = 3
    assert env.train.total
    assert env.val.total
    env.zero_accumulators()
    assert (env.train.total, env.val.total) == (0, 0)
    assert env.gradient_sample is None
    assert env.epoch_counts["r0c0"] == 3
    env.init_accumulators()
    assert env.epoch_counts == dict.fromkeys(SLOTS, 0)
    assert env.epoch_successes == dict.fromkeys(SLOTS, 0)
    assert env.epoch_rewards == dict.fromkeys(SLOTS, 0.0)


def test_a_validation_pass_has_one_sum_per_ablation() -> None:
    env = world_of().env
    env.start_validation(num_configs=5)
    assert env.val.loss.shape == env.val.correct.shape == (5,)


def test_an_env_knows_how_much_the_policy_remembers_of_it() -> None:
    world = world_of(n_envs=2)
    assert [env.lstm_hidden for env in world.envs] == [LstmRow(index=0), LstmRow(index=1)]
    for num_steps in (1, 2):
        first, second = world.wait()
        assert first.lstm_hidden == LstmRow(index=0, num_steps=num_steps)
        assert second.lstm_hidden == LstmRow(index=1, num_steps=num_steps)
    world.envs[1].reset_lstm_hidden()
    first, second = world.wait()
    assert (first.lstm_hidden.num_steps, second.lstm_hidden.num_steps) == (3, 1)


def test_the_active_slot_is_the_one_whose_seed_is_furthest_fossils_aside() -> None:
    env = world_of().env
    assert (env.active_slot, env.seed_stage) == (None, Stage.DORMANT)
    grow(env, "r0c0", Stage.FOSSILIZED)
    assert (env.active_slot, env.seed_stage) == (None, Stage.DORMANT)
    grow(env, "r0c1", Stage.HOLDING)
    grow(env, "r0c2", Stage.TRAINING)
    assert (env.active_slot, env.seed_stage) == ("r0c1", Stage.HOLDING)


def test_outbox_is_handed_over_once() -> None:
    world = world_of()
    world.env.outbox.append("payload")
    assert world.env.take_outbox() == ("payload",)
    assert world.env.take_outbox() == ()
