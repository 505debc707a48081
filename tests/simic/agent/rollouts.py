"""Small agents and random rounds for tests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch
from tests.tamiyo.policies import NUM_SLOTS, SPEC, generator, random_inputs, random_masks, sharpened
from torch import Tensor

from esper.leyline.actions import Op
from esper.leyline.config import TrainingConfig
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.agent.ppo_config import PPOConfig, ppo_config_from
from esper.simic.agent.ppo_metrics import PPOMetrics
from esper.simic.agent.rollout_buffer import StepRows
from esper.simic.normalizers import RewardNormalizer
from esper.tamiyo.mask_types import ActionMasks
from esper.tamiyo.network import Decision, LstmState, PolicySpec, draw_uniforms

NUM_ENVS = 6
NUM_STEPS = 9


def config_for(policy: PolicySpec, *, num_envs: int, num_steps: int, **changes: Any) -> PPOConfig:
    """Return the settings of the default configuration for this policy, with changes."""
    training = TrainingConfig(n_envs=num_envs, max_epochs=num_steps)
    defaults = ppo_config_from(training, obs_dim=policy.obs_dim, entropy_anneal_updates=0)
    return msgspec.structs.replace(defaults, policy=policy, **changes)


def small_config(**changes: Any) -> PPOConfig:
    settings = {"policy": SPEC, "num_envs": NUM_ENVS, "num_steps": NUM_STEPS} | changes
    return config_for(**settings)


def small_agent(seed: int = 0, **changes: object) -> PPOAgent:
    agent = PPOAgent.build(small_config(**changes), generator=generator(seed))
    sharpened(agent.network, 100.0)
    return agent


def rows_of(
    obs: Tensor,
    blueprints: Tensor,
    masks: ActionMasks,
    decision: Decision,
    rewards: Sequence[float],
) -> StepRows:
    """Return a step in which every op took effect as chosen."""
    return StepRows(
        obs=obs,
        blueprints=blueprints,
        masks=masks,
        decision=decision,
        effective_ops=decision.actions[-1].tolist(),
        is_forced=(masks.op.sum(-1) == 1).tolist(),
        rewards=rewards,
        contributions=torch.zeros(len(obs), NUM_SLOTS),
        is_measured=torch.zeros(len(obs), NUM_SLOTS, dtype=torch.bool),
    )


def wait_only(masks: ActionMasks) -> ActionMasks:
    """Return the masks of envs that can do nothing but wait."""
    op = torch.zeros_like(masks.op)
    op[..., Op.WAIT] = True
    return replace(masks, op=op)


def play_round(
    agent: PPOAgent,
    *,
    seed: int = 0,
    reward_scale: float = 1.0,
    rollbacks: Sequence[tuple[int, int]] = (),
    is_forced: bool = False,
) -> None:
    """Fill the buffer with a random round; (env, step) pairs panic instead of acting."""
    gen = generator(seed)
    num_envs = agent.config.num_envs
    state = agent.initial_state()
    for step in range(agent.config.num_steps):
        obs, blueprints = random_inputs(gen, num_envs)
        masks = random_masks(gen, num_envs)
        masks = wait_only(masks) if is_forced else masks
        rewards = (reward_scale * torch.randn(num_envs, generator=gen)).tolist()
        decision = agent.decide(
            obs, blueprints, masks, state, uniforms=draw_uniforms(num_envs, gen)
        )
        panicking = [env for env in range(num_envs) if (env, step) in rollbacks]
        acting = [env for env in range(num_envs) if env not in panicking]
        rows = rows_of(obs, blueprints, masks, decision, rewards)
        agent.buffer.record(step, rows, acting)
        for env in panicking:
            agent.buffer.end_segment_with_penalty(env, -10.0)
        is_gone = torch.tensor([env in panicking for env in range(num_envs)])
        state = decision.state.cleared(is_gone)
    truncate_all(agent, generator(seed + 1), state)


def learn_round(agent: PPOAgent, rewards: RewardNormalizer, **options: Any) -> PPOMetrics:
    """Make one update on the round in the buffer, and empty it."""
    metrics = agent.update(agent.prepare_round(rewards), **options)
    agent.finish_round(metrics)
    return metrics


def truncate_all(agent: PPOAgent, gen: torch.Generator, state: LstmState) -> None:
    """End every open segment and store the value of what would have followed."""
    envs = range(agent.config.num_envs)
    targets = [(env, step) for env in envs if (step := agent.buffer.truncate(env)) is not None]
    obs, blueprints = random_inputs(gen, agent.config.num_envs)
    values = agent.bootstrap_values(obs, blueprints, state)
    agent.buffer.set_bootstrap_values(targets, values[[env for env, _ in targets]])
