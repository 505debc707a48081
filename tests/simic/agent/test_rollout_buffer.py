"""The rollout buffer: rows, segments, penalties."""

from dataclasses import fields, replace

import pytest
import torch
from tests.simic.agent.rollouts import NUM_ENVS, NUM_STEPS, play_round, rows_of, small_agent
from tests.tamiyo.policies import (
    NUM_SLOTS,
    OBS_DIM,
    generator,
    random_inputs,
    random_masks,
    small_network,
)

from esper.leyline.errors import ContractError
from esper.simic.agent.rollout_buffer import RolloutBuffer
from esper.tamiyo.mask_types import ActionMasks
from esper.tamiyo.network import draw_uniforms

NETWORK = small_network()


def new_buffer() -> RolloutBuffer:
    return RolloutBuffer(
        num_envs=NUM_ENVS, num_steps=NUM_STEPS, obs_dim=OBS_DIM, num_slots=NUM_SLOTS
    )


def record(buffer: RolloutBuffer, step: int, env_ids=range(NUM_ENVS), reward: float = 1.0):
    obs, blueprints = random_inputs(generator(step), NUM_ENVS)
    masks = random_masks(generator(step), NUM_ENVS)
    state = NETWORK.initial_state(NUM_ENVS)
    uniforms = draw_uniforms(NUM_ENVS, generator(step))
    decision = NETWORK.decide(obs, blueprints, masks, state, uniforms=uniforms)
    rows = replace(
        rows_of(obs, blueprints, masks, decision, [reward] * NUM_ENVS),
        is_forced=[(env + step) % 2 == 0 for env in range(NUM_ENVS)],
        contributions=torch.randn(NUM_ENVS, NUM_SLOTS, generator=generator(step)),
        is_measured=torch.rand(NUM_ENVS, NUM_SLOTS, generator=generator(step)) < 0.5,
    )
    buffer.record(step, rows, list(env_ids))
    return rows


def finish(buffer: RolloutBuffer):
    for env in range(NUM_ENVS):
        buffer.terminate(env)
    return buffer.batch()


def test_rows_hold_what_was_recorded() -> None:
    buffer = new_buffer()
    rows = [record(buffer, step) for step in range(3)]

    batch = finish(buffer)

    for step, row in enumerate(rows):
        assert torch.equal(batch.obs[:, step], row.obs)
        assert torch.equal(batch.blueprints[:, step], row.blueprints)
        assert torch.equal(batch.actions[:, step], row.decision.actions.T)
        assert torch.equal(batch.log_probs[:, step], row.decision.log_probs.T)
        assert torch.equal(batch.values[:, step], row.decision.values)
        assert torch.equal(batch.contributions[:, step], row.contributions)
        assert torch.equal(batch.is_measured[:, step], row.is_measured)
        for mask in fields(ActionMasks):
            stored = getattr(batch.masks, mask.name)
            assert stored.dtype == torch.bool
            assert torch.equal(stored[:, step], getattr(row.masks, mask.name)), mask.name
        assert batch.effective_ops[:, step].tolist() == list(row.effective_ops)
        assert batch.is_forced[:, step].tolist() == list(row.is_forced)
        assert batch.rewards[:, step].tolist() == list(row.rewards)
    assert {
        getattr(batch, item.name).shape[1] for item in fields(batch) if item.name != "masks"
    } == {3}
    assert {getattr(batch.masks, mask.name).shape[1] for mask in fields(ActionMasks)} == {3}
    assert bool(batch.valid.all())
    assert not bool(batch.is_truncated.any())


def test_rollback_makes_one_row_terminal_with_the_penalty_and_forfeits_those_before() -> None:
    buffer = new_buffer()
    for step in range(4):
        record(buffer, step)
    record(buffer, 4, env_ids=[env for env in range(NUM_ENVS) if env != 2])

    outcome = buffer.end_segment_with_penalty(2, -3.0)

    batch = finish(buffer)
    assert (outcome.blamed_step, outcome.num_steps_forfeited) == (3, 4)
    assert batch.ends[2].tolist() == [False, False, False, True, False]
    assert batch.rewards[2].tolist() == [0.0, 0.0, 0.0, -3.0, 0.0]
    assert batch.is_forfeited[2].tolist() == [True] * 4 + [False]
    assert batch.bootstrap_values[2].tolist() == [0.0] * 5
    assert not bool(batch.valid[2, 4])
    others = [env for env in range(NUM_ENVS) if env != 2]
    assert batch.rewards[others].tolist() == [[1.0] * 5] * 5
    assert not bool(batch.is_forfeited[others].any())
    assert (buffer.rollback_count, buffer.rollback_steps_forfeited) == (1, 4)


def test_rollback_before_the_first_row_is_counted_and_writes_nothing() -> None:
    buffer = new_buffer()
    record(buffer, 0, env_ids=range(1, NUM_ENVS))

    outcome = buffer.end_segment_with_penalty(0, -10.0)

    assert outcome.blamed_step is None
    assert buffer.unattributed_penalties == 1
    batch = finish(buffer)
    assert not bool(batch.valid[0].any())
    assert not bool(batch.is_forfeited.any())
    assert not bool(batch.rewards[0].any())


def test_step_after_a_rollback_starts_a_new_segment() -> None:
    buffer = new_buffer()
    record(buffer, 0)
    record(buffer, 1, env_ids=[env for env in range(NUM_ENVS) if env != 3])
    buffer.end_segment_with_penalty(3, -10.0)
    record(buffer, 2)
    record(buffer, 3)

    batch = finish(buffer)

    assert batch.starts[3].tolist() == [True, False, True, False]
    assert batch.starts[0].tolist() == [True, False, False, False]
    assert buffer.cuts() == [[], [], [], [2], [], []]
    assert batch.rewards[3].tolist() == [-10.0, 0.0, 1.0, 1.0]


def test_second_rollback_leaves_the_first_segment_alone() -> None:
    buffer = new_buffer()
    record(buffer, 0)
    buffer.end_segment_with_penalty(1, -4.0)
    record(buffer, 1)
    outcome = buffer.end_segment_with_penalty(1, -2.0)

    batch = finish(buffer)

    assert (outcome.blamed_step, outcome.num_steps_forfeited) == (1, 1)
    assert batch.rewards[1].tolist() == [-4.0, -2.0]


def test_rows_of_a_step_that_never_happened_are_empty() -> None:
    buffer = new_buffer()
    record(buffer, 0, env_ids=[0])

    batch = finish(buffer)

    assert not bool(batch.obs[1:].any())
    assert batch.blueprints[1:].unique().tolist() == [-1]
    assert buffer.num_rows == 1


def test_discarded_segment_leaves_no_row_and_earlier_ones_stay() -> None:
    buffer = new_buffer()
    record(buffer, 0)
    buffer.end_segment_with_penalty(4, -10.0)
    record(buffer, 1)
    record(buffer, 2)

    buffer.discard_segment(4)

    batch = finish(buffer)
    assert batch.valid[4].tolist() == [True, False, False]
    assert batch.starts[4].tolist() == [True, False, False]
    assert batch.ends[4].tolist() == [True, False, False]
    assert buffer.cuts()[4] == []
    assert buffer.num_rows == 3 * NUM_ENVS - 2


def test_bootstrap_values_land_on_their_targets_in_any_order() -> None:
    buffer = new_buffer()
    for step in range(2):
        record(buffer, step, env_ids=range(NUM_ENVS - step))
        if step == 0:
            assert buffer.truncate(NUM_ENVS - 1) == 0
    for env in range(NUM_ENVS - 1):
        assert buffer.truncate(env) == 1
    targets = [(env, 1) for env in reversed(range(NUM_ENVS - 1))] + [(NUM_ENVS - 1, 0)]

    buffer.set_bootstrap_values(targets, torch.arange(NUM_ENVS, dtype=torch.float64))

    batch = buffer.batch()
    assert torch.equal(batch.is_truncated, batch.ends)
    stored = batch.bootstrap_values
    assert stored[:, 1].tolist() == [4.0, 3.0, 2.0, 1.0, 0.0, 0.0]
    assert stored[:, 0].tolist() == [0.0] * 5 + [5.0]


def test_envs_without_a_segment_need_no_bootstrap_value() -> None:
    buffer = new_buffer()

    assert [buffer.truncate(env) for env in range(NUM_ENVS)] == [None] * NUM_ENVS
    assert buffer.terminate(0) is None
    buffer.discard_segment(0)
    buffer.set_bootstrap_values([], torch.zeros(0))

    assert buffer.batch().valid.shape == (NUM_ENVS, 0)


def test_open_steps_are_those_since_the_segment_started() -> None:
    buffer = new_buffer()
    assert buffer.num_open_steps(2) == 0
    record(buffer, 0)
    assert buffer.num_open_steps(2) == 1
    buffer.end_segment_with_penalty(2, -1.0)
    assert buffer.num_open_steps(2) == 0
    record(buffer, 1)
    record(buffer, 2)
    assert [buffer.num_open_steps(env) for env in (1, 2)] == [3, 2]


def test_round_with_an_open_segment_is_refused() -> None:
    buffer = new_buffer()
    record(buffer, 0)

    with pytest.raises(ContractError, match="open segment"):
        buffer.batch()


def test_truncated_segment_without_its_bootstrap_value_is_refused() -> None:
    buffer = new_buffer()
    record(buffer, 0, env_ids=[0])
    buffer.truncate(0)

    with pytest.raises(ContractError, match=r"\(0, 0\).* lack a bootstrap"):
        buffer.batch()


def test_bootstrap_value_without_a_truncated_segment_is_refused() -> None:
    buffer = new_buffer()
    record(buffer, 0)

    with pytest.raises(ContractError, match="bootstrap values"):
        buffer.set_bootstrap_values([(0, 0)], torch.zeros(1))


def test_other_number_of_bootstrap_values_than_of_targets_is_refused() -> None:
    buffer = new_buffer()
    record(buffer, 0, env_ids=[0])
    buffer.truncate(0)

    with pytest.raises(ContractError, match=r"2 bootstrap values for \[\(0, 0\)\]"):
        buffer.set_bootstrap_values([(0, 0)], torch.zeros(2))


@pytest.mark.parametrize("step", [0, 2, NUM_STEPS])
def test_step_out_of_order_is_refused(step: int) -> None:
    buffer = new_buffer()
    record(buffer, 0)

    with pytest.raises(ContractError, match="expected step 1"):
        record(buffer, step)


def test_hole_inside_an_open_segment_is_refused() -> None:
    buffer = new_buffer()
    record(buffer, 0)
    record(buffer, 1, env_ids=[0])

    with pytest.raises(ContractError, match="the previous step is missing"):
        record(buffer, 2, env_ids=[1])


def test_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ContractError, match="env 0, step 0: reward nan"):
        record(new_buffer(), 0, reward=float("nan"))


def test_reset_buffer_holds_nothing_of_the_last_round() -> None:
    agent = small_agent()
    play_round(agent, rollbacks=[(0, 3), (1, 0)])

    agent.buffer.reset()

    record(agent.buffer, 0)
    fresh = new_buffer()
    record(fresh, 0)
    one, other = finish(agent.buffer), finish(fresh)
    for name in ("obs", "rewards", "valid", "starts", "ends", "is_truncated", "is_forfeited"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    counts = ("rollback_count", "rollback_steps_forfeited", "unattributed_penalties")
    assert [getattr(agent.buffer, name) for name in counts] == [0, 0, 0]
    assert (agent.buffer.num_rows, agent.buffer.num_recorded_steps) == (NUM_ENVS, 1)
    assert agent.buffer.cuts() == [[]] * NUM_ENVS
