"""One env's state: sums over a pass, its row of the policy's memory, its seed that is furthest."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
import torch
from tests.simic.training.envs import SLOTS, context_for, grow, world_of

from esper.leyline.stages import Stage
from esper.simic.training.env_factory import create_env_state
from esper.simic.training.parallel_env_state import Accumulators
from esper.tamiyo.network import LstmState
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


def test_means_are_those_of_the_batches_and_of_the_predictions() -> None:
    sums = Accumulators.zeros(2, torch.device("cpu"))
    sums.add(torch.tensor([1.0, 2.0]), torch.tensor([3, 4]), 4)
    sums.add(torch.tensor([2.0, 4.0]), torch.tensor([1, 0]), 2)
    assert sums.materialize_means() == (
        [1.5, 3.0],
        [pytest.approx(100 * 4 / 6), pytest.approx(100 * 4 / 6)],
    )
    assert (sums.total, sums.batches) == (6, 2)


def test_a_sum_keeps_no_graph() -> None:
    sums = Accumulators.zeros(1, torch.device("cpu"))
    sums.add(torch.ones((), requires_grad=True) * 2, torch.tensor(1), 1)
    assert not sums.loss.requires_grad


def test_a_step_starts_with_empty_sums_and_keeps_the_episodes() -> None:
    world = world_of()
    world.wait()
    env = world.env
    env.epoch_counts["r0c0"] = 3
    assert env.train.batches
    assert env.val.batches
    env.zero_accumulators()
    assert (env.train.total, env.train.batches, env.val.total) == (0, 0, 0)
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


@dataclass(eq=False)
class Memory:
    """Takes the place of the controller that owns the policy's memory."""

    lstm_state: LstmState
    forgotten: list[int] = field(default_factory=list)

    def forget(self, env_ids: Iterable[int]) -> None:
        self.forgotten += env_ids


def test_an_env_shows_its_row_of_the_policys_memory_and_can_have_it_emptied() -> None:
    h = torch.arange(6.0).reshape(3, 2)
    memory = Memory(LstmState(h=h, c=-h))
    env = create_env_state(context_for(n_envs=3, lstm=memory), 0, 1)
    assert env.lstm_hidden is not None
    assert [row.tolist() for row in env.lstm_hidden] == [[2.0, 3.0], [-2.0, -3.0]]
    env.reset_lstm_hidden()
    assert memory.forgotten == [1]


def test_where_nobody_remembers_there_is_nothing_to_forget() -> None:
    env = world_of().env
    assert env.lstm_hidden is None
    env.reset_lstm_hidden()


def test_the_active_slot_is_the_one_whose_seed_is_furthest_fossils_aside() -> None:
    env = world_of().env
    assert (env.active_slot, env.seed_stage) == (None, Stage.DORMANT)
    grow(env, "r0c0", Stage.FOSSILIZED)
    assert (env.active_slot, env.seed_stage) == (None, Stage.DORMANT)
    grow(env, "r0c1", Stage.HOLDING)
    grow(env, "r0c2", Stage.TRAINING)
    assert (env.active_slot, env.seed_stage) == ("r0c1", Stage.HOLDING)


def test_what_was_told_is_handed_over_once() -> None:
    world = world_of()
    world.env.outbox.append("news")
    assert world.env.take_outbox() == ("news",)
    assert world.env.take_outbox() == ()
