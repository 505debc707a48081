"""The critic against processes whose values are known in closed form."""

import pytest
import torch
from tests.simic.agent.rollouts import config_for, rows_of
from tests.simic.agent.test_learning import NUM_ENVS, legal
from tests.tamiyo.policies import NUM_SLOTS, generator

from esper.leyline.actions import Op
from esper.leyline.rewards import EpisodeEnd
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.agent.ppo_metrics import PPOMetrics
from esper.simic.normalizers import RewardNormalizer
from esper.tamiyo.network import PolicySpec, draw_uniforms

torch.set_num_threads(1)

NUM_STEPS, NUM_ROUNDS, GAMMA = 6, 50, 0.8
REWARD, FINAL_REWARD = 0.5, 6.0


def reward_at(step: int, episode_end: EpisodeEnd) -> float:
    """Return a wage per step; an episode that terminates also has a reward at its end."""
    is_paid_out = step == NUM_STEPS - 1 and episode_end is EpisodeEnd.TERMINATE
    return REWARD + FINAL_REWARD * is_paid_out


def true_values(episode_end: EpisodeEnd) -> list[float]:
    """Return the value of the state at each step, whatever the policy does."""
    if episode_end is EpisodeEnd.BOOTSTRAP:
        return [REWARD / (1 - GAMMA)] * NUM_STEPS
    values = [0.0] * (NUM_STEPS + 1)
    for step in reversed(range(NUM_STEPS)):
        values[step] = reward_at(step, episode_end) + GAMMA * values[step + 1]
    return values[:NUM_STEPS]


def play_round(agent: PPOAgent, gen: torch.Generator, episode_end: EpisodeEnd) -> torch.Tensor:
    """Play a round in which no action matters; return the value head's outputs [N, T]."""
    masks, state = legal([Op.WAIT, Op.ADVANCE]), agent.initial_state()
    blueprints = torch.full((NUM_ENVS, NUM_SLOTS), -1)
    is_timed = episode_end is EpisodeEnd.TERMINATE
    for step in range(NUM_STEPS):
        obs = torch.full((NUM_ENVS, 1), step / NUM_STEPS if is_timed else 0.0)
        decision = agent.decide(
            obs, blueprints, masks, state, uniforms=draw_uniforms(NUM_ENVS, gen)
        )
        rewards = [reward_at(step, episode_end)] * NUM_ENVS
        rows = rows_of(obs, blueprints, masks, decision, rewards)
        agent.buffer.record(step, rows, range(NUM_ENVS))
        state = decision.state
    if is_timed:
        for env in range(NUM_ENVS):
            agent.buffer.terminate(env)
    else:
        targets = [(env, agent.buffer.truncate(env)) for env in range(NUM_ENVS)]
        after = agent.bootstrap_values(torch.zeros(NUM_ENVS, 1), blueprints, state)
        agent.buffer.set_bootstrap_values(targets, after)
    return agent.buffer.batch().values.clone()


def learn(agent: PPOAgent, rewards: RewardNormalizer, gen: torch.Generator) -> PPOMetrics:
    metrics = agent.update(agent.prepare_round(rewards), generator=gen)
    agent.finish_round(metrics)
    return metrics


@pytest.mark.parametrize("episode_end", EpisodeEnd)
def test_critic_finds_the_true_values(episode_end: EpisodeEnd) -> None:
    policy = PolicySpec(obs_dim=1, num_slots=NUM_SLOTS, feature_dim=32, hidden_dim=32)
    config = config_for(
        policy,
        num_envs=NUM_ENVS,
        num_steps=NUM_STEPS,
        num_minibatches=1,
        lr=5e-3,
        lr_end=3e-4,
        total_updates=NUM_ROUNDS,
        gamma=GAMMA,
        value_warmup_updates=0,
    )
    agent = PPOAgent.build(config, generator=generator(1))
    rewards, gen = RewardNormalizer(), generator(2)
    for _ in range(NUM_ROUNDS):
        play_round(agent, gen, episode_end)
        metrics = learn(agent, rewards, gen)

    outputs = play_round(agent, gen, episode_end)
    values = agent.value_normalizer.denormalize(outputs) * rewards.scale

    expected = torch.tensor(true_values(episode_end)).expand(NUM_ENVS, -1)
    error = (values - expected).abs().max()
    assert error <= 0.05 * expected.abs().max()
    if episode_end is EpisodeEnd.TERMINATE:
        assert metrics.returns.explained_variance >= 0.9
