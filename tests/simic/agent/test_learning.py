"""PPO learns what can be learned, and only with a memory where memory is needed."""

from collections.abc import Callable, Sequence

import torch
from tests.simic.agent.rollouts import config_for, learn_round, rows_of
from tests.tamiyo.policies import NUM_SLOTS, generator
from torch import Tensor

from esper.leyline.actions import HEADS, NUM_OPS, Head, Op
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.agent.ppo_config import PPOConfig
from esper.simic.normalizers import RewardNormalizer
from esper.tamiyo.mask_types import ActionMasks
from esper.tamiyo.network import (
    LstmState,
    PolicyNetwork,
    PolicyOutput,
    PolicySpec,
    draw_uniforms,
)

NUM_ENVS = 16


def legal(ops: Sequence[Op], blueprints: Sequence[int] = (1, 2, 3, 4)) -> ActionMasks:
    """Return the same masks for every env: these ops, slots 1 and 2, these blueprints."""
    op = torch.zeros(NUM_ENVS, NUM_OPS, dtype=torch.bool)
    op[:, list(ops)] = True
    slot_by_op = op.unsqueeze(-1).repeat(1, 1, NUM_SLOTS)
    slot_by_op[:, 1:, 0] = False
    blueprint = torch.zeros(NUM_ENVS, 13, dtype=torch.bool)
    blueprint[:, list(blueprints)] = True
    sizes = {"style": 4, "tempo": 3, "alpha_target": 3, "alpha_speed": 4, "alpha_curve": 5}
    others = {name: torch.ones(NUM_ENVS, size).bool() for name, size in sizes.items()}
    return ActionMasks(op=op, slot_by_op=slot_by_op, blueprint=blueprint, **others)


def play(
    agent: PPOAgent,
    masks: ActionMasks,
    obs_by_step: Tensor,
    reward: Callable[[int, Tensor], Tensor],
    gen: torch.Generator | None,
) -> float:
    """Play one terminal episode in every env; return the mean reward per env."""
    state = agent.initial_state()
    blueprints = torch.full((NUM_ENVS, NUM_SLOTS), -1)
    total = 0.0
    for step, obs in enumerate(obs_by_step):
        uniforms = None if gen is None else draw_uniforms(NUM_ENVS, gen)
        decision = agent.decide(obs, blueprints, masks, state, uniforms=uniforms)
        rewards = reward(step, decision.actions)
        rows = rows_of(obs, blueprints, masks, decision, rewards.tolist())
        agent.buffer.record(step, rows, range(NUM_ENVS))
        state = decision.state
        total += float(rewards.mean())
    for env in range(NUM_ENVS):
        agent.buffer.terminate(env)
    return total


def config(num_steps: int, obs_dim: int, **changes: float) -> PPOConfig:
    settings = {"lr": 3e-3, "gamma": 0.9, "target_kl": 0.05, "value_warmup_updates": 0} | changes
    policy = PolicySpec(obs_dim=obs_dim, num_slots=NUM_SLOTS, feature_dim=32, hidden_dim=32)
    return config_for(policy, num_envs=NUM_ENVS, num_steps=num_steps, **settings)


def test_ppo_learns_a_factored_masked_bandit() -> None:
    wanted = {Head.SLOT: 2, Head.BLUEPRINT: 3, Head.STYLE: 0, Head.TEMPO: 2, Head.ALPHA_TARGET: 1}
    masks = legal([Op.WAIT, Op.GERMINATE, Op.ADVANCE])
    obs = torch.ones(4, NUM_ENVS, 2)

    def reward(step: int, actions: Tensor) -> Tensor:
        hits = sum(
            (actions[HEADS.index(head)] == choice).float() for head, choice in wanted.items()
        )
        return torch.where(actions[-1] == Op.GERMINATE, 1.0 + hits, 0.0)

    agent = PPOAgent.build(config(4, 2), generator=generator(1))
    normalizer, gen = RewardNormalizer(), generator(2)
    for _ in range(40):
        play(agent, masks, obs, reward, gen)
        learn_round(agent, normalizer, generator=gen)

    optimum = 4 * (1.0 + len(wanted))
    assert play(agent, masks, obs, reward, None) >= 0.95 * optimum


class ForgetfulNetwork(PolicyNetwork):
    """The same network with its memory cut at every step."""

    def step(self, obs: Tensor, blueprints: Tensor, state: LstmState) -> PolicyOutput:
        return super().step(obs, blueprints, self.initial_state(len(obs)))

    def unroll(
        self, obs: Tensor, blueprints: Tensor, starts: Tensor, cuts: Sequence[int]
    ) -> PolicyOutput:
        everywhere = torch.ones_like(starts)
        return super().unroll(obs, blueprints, everywhere, range(1, obs.shape[1]))


def recalled_fraction(network_type: type[PolicyNetwork], num_rounds: int) -> float:
    """Train on: the first observation shows which op pays at the last step."""
    num_steps = 4
    settings = config(num_steps, 2)
    network = network_type(settings.policy, generator(1))
    agent = PPOAgent(config=settings, network=network, device=torch.device("cpu"))
    masks = legal([Op.WAIT, Op.ADVANCE])
    normalizer, gen = RewardNormalizer(), generator(2)
    cues = torch.arange(NUM_ENVS) % 2
    obs = torch.zeros(num_steps, NUM_ENVS, 2)
    obs[0] = torch.nn.functional.one_hot(cues, 2).float()
    paying = torch.where(cues == 0, Op.WAIT, Op.ADVANCE)

    def reward(step: int, actions: Tensor) -> Tensor:
        return (actions[-1] == paying).float() * (step == num_steps - 1)

    for _ in range(num_rounds):
        play(agent, masks, obs, reward, gen)
        learn_round(agent, normalizer, generator=gen)
    return play(agent, masks, obs, reward, None)


def test_ppo_learns_to_recall_what_it_saw_three_steps_ago() -> None:
    assert recalled_fraction(PolicyNetwork, 30) >= 0.95


def test_policy_without_a_memory_cannot_recall() -> None:
    assert recalled_fraction(ForgetfulNetwork, 30) <= 0.6
