"""The agent's settings and schedules."""

import pytest
import torch
from tests.simic.agent.rollouts import learn_round, play_round, small_agent, small_config
from tests.tamiyo.policies import generator

from esper.leyline.actions import HEADS, Head
from esper.leyline.config import AdvantageNorm, TrainingConfig
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.agent.ppo_config import coefficients_at, ppo_config_from
from esper.simic.normalizers import RewardNormalizer


@pytest.mark.parametrize(("num_updates", "expected"), [(0, 0.2), (5, 0.15), (10, 0.1), (99, 0.1)])
def test_entropy_coefficient_is_annealed_linearly(num_updates: int, expected: float) -> None:
    config = small_config(entropy_coef_start=0.2, entropy_coef_end=0.1, entropy_anneal_updates=10)

    assert coefficients_at(config, num_updates).entropy == pytest.approx(expected)


def test_entropy_coefficient_never_falls_below_its_minimum() -> None:
    config = small_config(entropy_coef_start=0.2, entropy_coef_end=0.0, entropy_anneal_updates=10)

    assert coefficients_at(config, 10).entropy == config.entropy_coef_min


def test_entropy_coefficient_stays_at_its_start_without_annealing() -> None:
    config = small_config(entropy_coef_start=0.2, entropy_coef_end=0.1)

    assert coefficients_at(config, 50).entropy == 0.2


@pytest.mark.parametrize(("num_updates", "expected"), [(0, 0.1), (5, 0.3), (10, 0.5), (11, 0.5)])
def test_value_coefficient_warms_up(num_updates: int, expected: float) -> None:
    config = small_config(value_coef=0.5, value_coef_start=0.1, value_warmup_updates=10)

    assert coefficients_at(config, num_updates).value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("num_updates", "expected"),
    [(0, 1.5), (24, 1.5), (25, 1.0), (74, 1.0), (75, 1.0), (100, 0.5), (500, 0.5)],
)
def test_floor_penalty_is_hard_at_first_and_soft_at_the_end(
    num_updates: int, expected: float
) -> None:
    config = small_config(total_updates=100)

    assert coefficients_at(config, num_updates).floor == pytest.approx(expected)


@pytest.mark.parametrize(("num_updates", "expected"), [(0, 1.0), (5, 0.55), (10, 0.1), (99, 0.1)])
def test_exploration_floors_fade_with_the_entropy_weight(num_updates: int, expected: float) -> None:
    config = small_config(entropy_anneal_updates=10, floor_end=0.1, total_updates=1000)

    assert coefficients_at(config, num_updates).floor_scale == pytest.approx(expected)


def test_exploration_floors_fade_over_the_run_where_entropy_is_not_annealed() -> None:
    config = small_config(entropy_anneal_updates=0, floor_end=0.1, total_updates=20)

    found = [coefficients_at(config, updates).floor_scale for updates in (0, 10, 20, 40)]
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_exploration_floors_can_begin_low() -> None:
    config = small_config(entropy_anneal_updates=10, floor_start=0.2, floor_end=0.1)

    found = [coefficients_at(config, updates).floor_scale for updates in (0, 5, 10)]
    assert found == pytest.approx([0.2, 0.15, 0.1])


def test_floors_of_the_next_rollout_are_set_with_the_schedule() -> None:
    agent = small_agent(floor_end=0.1, total_updates=2)
    full = agent.network.space.mixtures.clone()
    for expected in (0.55, 0.1):
        play_round(agent)
        learn_round(agent, RewardNormalizer(), generator=generator(1))
        torch.testing.assert_close(agent.network.space.mixtures, expected * full)
    restored = PPOAgent.from_state(agent.state_dict())
    assert torch.equal(restored.network.space.mixtures, agent.network.space.mixtures)


@pytest.mark.parametrize(
    ("num_updates", "expected"), [(0, 1e-3), (5, 6e-4), (10, 2e-4), (30, 2e-4)]
)
def test_learning_rate_is_annealed_linearly_over_the_run(num_updates: int, expected: float) -> None:
    config = small_config(lr=1e-3, lr_end=2e-4, total_updates=10)

    assert coefficients_at(config, num_updates).lr == pytest.approx(expected)


def test_contribution_loss_is_faded_in() -> None:
    config = small_config(contribution_coef=0.05, contribution_warmup_updates=1000)

    weights = [coefficients_at(config, updates).contribution for updates in (0, 500, 1000, 2000)]

    assert weights == pytest.approx([0.0, 0.025, 0.05, 0.05])


def test_config_of_a_run_reaches_the_agent() -> None:
    training = TrainingConfig(
        n_envs=6,
        max_epochs=40,
        slots=("r0c0", "r0c1"),
        lstm_hidden_dim=64,
        feature_dim=32,
        policy_max_grad_norm=2.5,
        entropy_coef=0.07,
        entropy_anneal_episodes=13,
        entropy_coef_per_head={"op": 2.0},
        value_coef=0.4,
        n_episodes=77,
        lr=0.01,
        orthogonal_init=False,
        num_minibatches=3,
        value_clip=0.3,
        advantage_norm=AdvantageNorm.MINIBATCH,
        floor_start=0.3,
        floor_end=0.2,
    )

    config = ppo_config_from(training, obs_dim=85, entropy_anneal_updates=3)

    assert (config.policy.obs_dim, config.policy.hidden_dim) == (85, 64)
    assert (config.policy.num_slots, config.policy.feature_dim) == (2, 32)
    assert (config.num_envs, config.num_steps, config.total_updates) == (6, 40, 77)
    assert config.max_grad_norm == 2.5
    assert (config.lr, config.lr_end) == (0.01, 0.01)
    assert not config.policy.is_orthogonal
    assert (config.num_minibatches, config.value_clip, config.floor_end) == (3, 0.3, 0.2)
    assert config.floor_start == 0.3
    assert config.advantage_norm is AdvantageNorm.MINIBATCH
    assert (config.entropy_coef_start, config.entropy_coef_end) == (0.07, 0.07)
    assert config.entropy_anneal_updates == 3
    assert config.value_coef_start == pytest.approx(0.04)
    assert config.entropy_weights[HEADS.index(Head.OP)] == 2.0
    assert config.entropy_weights[HEADS.index(Head.BLUEPRINT)] == 1.3
