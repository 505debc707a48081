"""The agent as the trainer sees it, and its checkpoints."""

import statistics
from pathlib import Path

import msgspec
import pytest
import torch
from tests.simic.agent.rollouts import NUM_ENVS, learn_round, play_round, small_agent
from tests.tamiyo.policies import generator, random_inputs
from torch import Tensor

from esper.leyline.errors import UnreadableFileError
from esper.simic.agent import ppo_agent
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.agent.ppo_update import normalized_advantages
from esper.simic.normalizers import RewardNormalizer


def learn(agent: PPOAgent, normalizer: RewardNormalizer, *, seed: int, scale: float = 1.0):
    play_round(agent, seed=seed, reward_scale=scale)
    return learn_round(agent, normalizer, generator=generator(seed))


def tensors_in(state: object) -> list[Tensor]:
    """Return every tensor of a nested state, in order."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in tensors_in(value)]
    if isinstance(state, list | tuple):
        return [tensor for value in state for tensor in tensors_in(value)]
    return []


def assert_bit_equal(one: PPOAgent, other: PPOAgent) -> None:
    pairs = zip(tensors_in(one.state_dict()), tensors_in(other.state_dict()), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert one.num_updates == other.num_updates
    assert one.config == other.config


def test_loaded_agent_is_the_saved_one_bit_for_bit_and_learns_the_same(tmp_path: Path) -> None:
    agent, rewards = small_agent(clip_ratio=0.17, entropy_floors=(0.3,) * 8), RewardNormalizer()
    for seed in range(2):
        learn(agent, rewards, seed=seed)
    agent.save(tmp_path / "agent.pt")
    loaded, loaded_rewards = PPOAgent.load(tmp_path / "agent.pt"), RewardNormalizer()
    loaded_rewards.load_state_dict(rewards.state_dict())
    assert_bit_equal(agent, loaded)

    for seed in range(2, 4):
        one = learn(agent, rewards, seed=seed)
        same = learn(loaded, loaded_rewards, seed=seed)
        assert one == same

    assert_bit_equal(agent, loaded)
    assert agent.num_updates == 4


def test_mixtures_of_a_checkpoint_outlive_the_table(tmp_path: Path) -> None:
    mixtures = tuple(0.01 * (index + 1) for index in range(8))
    policy = small_agent().config.policy
    agent = small_agent(policy=msgspec.structs.replace(policy, mixtures=mixtures))
    agent.save(tmp_path / "agent.pt")

    loaded = PPOAgent.load(tmp_path / "agent.pt")

    assert loaded.network.space.mixtures.flatten().tolist() == pytest.approx(mixtures)


def test_same_seeds_learn_the_same_bits() -> None:
    one, same = small_agent(), small_agent()
    for agent in (one, same):
        learn(agent, RewardNormalizer(), seed=1)

    assert_bit_equal(one, same)


def test_state_of_another_version_is_refused_with_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_agent().save(tmp_path / "agent.pt")
    monkeypatch.setattr(ppo_agent, "AGENT_STATE_VERSION", 3)

    with pytest.raises(UnreadableFileError, match="has version 2, this Esper reads 3"):
        PPOAgent.load(tmp_path / "agent.pt")


@pytest.mark.parametrize("content", [None, b"", b"no checkpoint"])
def test_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "agent.pt"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UnreadableFileError, match=r"agent\.pt: "):
        PPOAgent.load(path)


def test_update_without_an_optimizer_step_moves_no_schedule() -> None:
    agent = small_agent(target_kl=-1.0)
    play_round(agent)

    metrics = learn_round(agent, RewardNormalizer(), generator=generator(1))

    assert (metrics.has_learned, metrics.skip_reason, agent.num_updates) == (False, "kl_stop", 0)
    assert metrics.losses is None


def test_round_without_rows_teaches_nothing() -> None:
    agent, rewards = small_agent(), RewardNormalizer()
    play_round(agent, rollbacks=[(env, step) for env in range(NUM_ENVS) for step in range(9)])
    before = tensors_in(agent.state_dict())

    metrics = learn_round(agent, rewards, generator=generator(1))

    assert metrics.skip_reason == "no_rows"
    assert metrics.rollback_count == NUM_ENVS * 9
    assert all(
        torch.equal(a, b) for a, b in zip(before, tensors_in(agent.state_dict()), strict=True)
    )


def test_scaling_all_rewards_leaves_normalised_advantages_unchanged() -> None:
    results = []
    for scale in (1.0, 37.0):
        agent, rewards = small_agent(), RewardNormalizer()
        for seed in range(3):
            learn(agent, rewards, seed=seed, scale=scale)
        play_round(agent, seed=9, reward_scale=scale)
        valid = agent.buffer.batch().valid
        raw = agent.estimate_advantages(rewards).advantages
        results.append(normalized_advantages(raw, valid, agent.config))

    torch.testing.assert_close(results[0], results[1], atol=1e-4, rtol=0)


def test_explained_variance_is_that_of_realised_returns() -> None:
    agent, normalizer = small_agent(), RewardNormalizer()
    play_round(agent, reward_scale=3.0, rollbacks=[(1, 5)])
    rows = agent.buffer.batch()
    rows.bootstrap_values[rows.is_truncated] = 50.0
    returns, values = [], []

    found = agent.prepare_round(normalizer).before.returns

    for env in range(NUM_ENVS):
        ahead = 0.0
        for step in reversed(range(agent.config.num_steps)):
            if not rows.valid[env, step]:
                continue
            ahead = 0.0 if rows.ends[env, step] else ahead
            ahead = float(normalizer.normalize(rows.rewards)[env, step]) + 0.995 * ahead
            returns.append(ahead)
            values.append(float(rows.values[env, step]))
    residuals = [one - other for one, other in zip(returns, values, strict=True)]
    expected = 1 - statistics.variance(residuals) / max(statistics.variance(returns), 1.0)
    assert found.explained_variance == pytest.approx(expected, rel=1e-4)
    assert found.return_mean == pytest.approx(statistics.fmean(returns), rel=1e-4)


@pytest.mark.parametrize("promise", [-1e9, 1e9])
def test_no_return_is_larger_than_rewards_can_make_it(promise: float) -> None:
    agent = small_agent()
    play_round(agent)
    rows = agent.buffer.batch()
    rows.values.fill_(promise)
    rows.bootstrap_values[rows.ends] = promise

    normalizer = RewardNormalizer()
    returns = agent.estimate_advantages(normalizer).returns

    limit = float(normalizer.normalize(rows.rewards).abs().max()) / (1.0 - 0.995)
    assert returns.abs().max().item() == pytest.approx(limit, rel=0.01)
    assert returns.abs().max().item() <= limit * (1 + 1e-6)


def test_penalty_is_scaled_like_every_reward_and_enters_no_scale() -> None:
    agent, rewards, twin = small_agent(), RewardNormalizer(), RewardNormalizer()
    play_round(agent, seed=1, reward_scale=5.0)
    agent.estimate_advantages(rewards)
    agent.estimate_advantages(twin)
    scale = float(rewards.scale)
    agent.buffer.reset()
    play_round(agent, seed=2, reward_scale=5.0, rollbacks=[(1, 5)])
    rows = agent.buffer.batch()

    realized = agent.estimate_advantages(rewards).realized

    assert rows.rewards[1, :5].tolist() == [0.0] * 4 + [-10.0]
    expected = [-10.0 / scale * 0.995 ** (4 - step) for step in range(5)]
    assert realized[1, :5].tolist() == pytest.approx(expected, rel=1e-5)
    rows.rewards[1, 4] = -1e6
    agent.estimate_advantages(twin)
    assert torch.equal(rewards.scale, twin.scale)


def test_segment_that_ends_in_a_rollback_never_has_a_positive_sum() -> None:
    agent = small_agent()
    play_round(agent, reward_scale=100.0, rollbacks=[(1, 5)])

    assert agent.buffer.batch().rewards[1, :5].sum().item() == -10.0


def test_bootstrap_uses_the_memory_of_its_own_env_in_matching_order() -> None:
    agent = small_agent()
    obs, blueprints = random_inputs(generator(1), NUM_ENVS)
    state = agent.initial_state()
    for _ in range(3):
        state = agent.network.step(obs, blueprints, state).state
    all_values = agent.bootstrap_values(obs, blueprints, state)
    chosen = torch.tensor([4, 1])

    values = agent.bootstrap_values(obs[chosen], blueprints[chosen], state.select(chosen))
    forgotten = agent.bootstrap_values(
        obs[chosen], blueprints[chosen], agent.network.initial_state(2)
    )

    torch.testing.assert_close(values, all_values[chosen], atol=1e-6, rtol=0)
    assert not torch.allclose(values, forgotten, atol=1e-4)


def test_only_the_critics_decay() -> None:
    agent = small_agent(weight_decay=0.1)
    decaying = next(group for group in agent.optimizer.param_groups if group["weight_decay"] > 0)
    critics = {*agent.network.value.parameters(), *agent.network.q.parameters()}

    assert set(decaying["params"]) == critics
    assert sum(len(group["params"]) for group in agent.optimizer.param_groups) == len(
        list(agent.network.parameters())
    )


def test_agent_fitted_to_another_rollout_knows_what_it_knew() -> None:
    agent = small_agent()
    num_steps = agent.config.num_steps

    agent.fit_rollout(num_envs=NUM_ENVS + 3, num_steps=2)

    assert len(agent.initial_state().h) == NUM_ENVS + 3
    assert (agent.buffer.num_envs, agent.buffer.num_steps) == (NUM_ENVS + 3, 2)
    agent.fit_rollout(num_envs=NUM_ENVS, num_steps=num_steps)
    assert_bit_equal(agent, small_agent())
