"""Running statistics against closed forms."""

import pytest
import torch
from torch import Tensor

from esper.leyline.errors import ContractError
from esper.simic.agent.gae import discounted_returns
from esper.simic.normalizers import ObservationNormalizer, RewardNormalizer, ValueNormalizer


def random_rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def all_of(rows: Tensor) -> Tensor:
    return torch.ones(rows.shape, dtype=torch.bool)


def update_rewards(normalizer: RewardNormalizer, rewards: Tensor, gamma: float = 1.0) -> Tensor:
    """Normalise a round of rewards, each row one episode."""
    is_end = torch.zeros_like(rewards, dtype=torch.bool)
    is_end[:, -1] = True
    paid = all_of(rewards)
    returns = discounted_returns(rewards.double(), ends=is_end, valid=paid, gamma=gamma)
    return normalizer.normalize_round(rewards, returns, paid)


@pytest.mark.parametrize("sizes", [(1000,), (7, 300, 1, 40), (1, 1, 1)])
def test_observation_moments_are_those_of_the_whole_sample(sizes: tuple[int, ...]) -> None:
    normalizer = ObservationNormalizer(3)
    rounds = [
        3.0 * index + (1.0 + index) * random_rows(size, 3, seed=index)
        for index, size in enumerate(sizes)
    ]

    for rows in rounds:
        normalizer.update(rows)

    whole = torch.cat(rounds).double()
    torch.testing.assert_close(normalizer.mean, whole.mean(0))
    torch.testing.assert_close(normalizer.scale, whole.std(0, correction=0))
    assert normalizer.state_dict()["count"] == len(whole)


def test_after_one_round_every_varying_feature_has_a_deviation_near_one() -> None:
    scales = torch.tensor([1e-4, 3e-3, 0.06, 1.0, 40.0])
    offsets = torch.tensor([0.3, -0.8, 0.9, 0.0, 100.0])
    rare = (torch.arange(320) % 160 == 0).float().unsqueeze(1)
    rows = torch.cat((offsets + scales * random_rows(320, 5), rare), dim=1)
    normalizer = ObservationNormalizer(6)

    normalizer.update(rows)

    fresh = torch.cat((offsets + scales * random_rows(320, 5, seed=1), rare), dim=1)
    deviations = normalizer.normalize(fresh).std(0, correction=0)
    assert ((deviations >= 0.5) & (deviations <= 2.0)).all(), deviations


def test_constant_feature_is_centred_and_stays_finite_when_it_moves() -> None:
    normalizer = ObservationNormalizer(2)
    normalizer.update(torch.tensor([0.3, 0.0]).expand(100, 2))

    assert normalizer.normalize(torch.tensor([0.3, 0.0])).tolist() == pytest.approx([0.0, 0.0])
    assert normalizer.normalize(torch.tensor([1.3, -1.0])).tolist() == pytest.approx([1.0, -1.0])


def test_observations_pass_unchanged_before_the_first_round_and_are_clipped() -> None:
    normalizer = ObservationNormalizer(2)
    rows = random_rows(10, 2)

    assert torch.equal(normalizer.normalize(rows), rows)
    assert normalizer.normalize(torch.tensor([1e9, -1e9])).tolist() == [10.0, -10.0]
    assert normalizer.normalize(rows.double()).dtype == torch.float32


def test_round_without_an_observation_teaches_nothing() -> None:
    normalizer = ObservationNormalizer(2)
    normalizer.update(random_rows(10, 2))
    before = normalizer.state_dict()

    normalizer.update(torch.zeros(0, 2))

    after = normalizer.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in ("count", "mean", "var"))


def test_normalising_observations_learns_nothing() -> None:
    normalizer = ObservationNormalizer(2)
    before = normalizer.state_dict()

    normalizer.normalize(100.0 * random_rows(10, 2))

    assert all(torch.equal(before[name], value) for name, value in normalizer.state_dict().items())


def test_observation_that_is_not_finite_is_not_learned_from() -> None:
    normalizer = ObservationNormalizer(2)

    with pytest.raises(ContractError, match="not finite"):
        normalizer.update(torch.tensor([[0.0, float("nan")]]))

    assert normalizer.mean.tolist() == [0.0, 0.0]


def returns_of(rewards: Tensor, gamma: float) -> Tensor:
    """Return the discounted returns of each row, by the definition."""
    num_steps = rewards.shape[1]
    weights = torch.tensor(
        [[gamma ** (u - t) if u >= t else 0.0 for u in range(num_steps)] for t in range(num_steps)],
        dtype=torch.float64,
    )
    return rewards.double() @ weights.T


def test_rewards_are_divided_by_the_deviation_of_the_returns_of_the_rounds_before() -> None:
    normalizer = RewardNormalizer()
    rounds = [scale * random_rows(4, 20, seed=seed) for seed, scale in enumerate((3.0, 1.0, 7.0))]

    normalized = [update_rewards(normalizer, rewards, gamma=0.9) for rewards in rounds]

    own = returns_of(rounds[0], 0.9).std(correction=0)
    torch.testing.assert_close(normalized[0], (rounds[0] / own).float())
    torch.testing.assert_close(normalized[1], (rounds[1] / own).float())
    both = torch.cat([returns_of(rewards, 0.9) for rewards in rounds[:2]]).std(correction=0)
    torch.testing.assert_close(normalized[2], (rounds[2] / both).float())


@pytest.mark.parametrize("gamma", [0.99, 0.995, 1.0])
@pytest.mark.parametrize("num_steps", [1, 5, 40, 150, 1000])
def test_order_and_spacing_of_terminal_rewards_survive(num_steps: int, gamma: float) -> None:
    normalizer = RewardNormalizer()
    accuracies = torch.linspace(0.0, 100.0, 21)
    rewards = torch.zeros(21, num_steps)
    rewards[:, -1] = 3.0 * accuracies / 100.0

    last = update_rewards(normalizer, rewards, gamma=gamma)[:, -1]

    steps = last.diff()
    torch.testing.assert_close(steps, steps.mean().expand_as(steps), rtol=1e-4, atol=1e-5)
    assert steps.min() > 0.01
    assert 0.5 < last.max() < 20.0


def test_nearly_equal_returns_do_not_become_large() -> None:
    normalizer = RewardNormalizer()
    rewards = torch.zeros(50, 5)
    rewards[:, -1] = 0.6 + 1e-6 * random_rows(50)

    last = update_rewards(normalizer, rewards)[:, -1]

    assert last.tolist() == pytest.approx([4.0] * 50, rel=1e-3)


def test_only_a_broken_reward_is_clipped() -> None:
    normalizer = RewardNormalizer()
    update_rewards(normalizer, random_rows(10, 10), gamma=0.9)

    assert normalizer.normalize(torch.tensor([1e9, -1e9])).tolist() == [100.0, -100.0]


def test_rewards_keep_their_zero_and_their_sign() -> None:
    normalizer = RewardNormalizer()
    update_rewards(normalizer, 5.0 + random_rows(4, 20))

    normalized = normalizer.normalize(torch.tensor([-1.0, 0.0, 1.0]))

    assert normalized[1].item() == 0.0
    assert normalized[0].item() == -normalized[2].item() < 0


def test_one_envs_rewards_do_not_touch_anothers_within_a_round() -> None:
    quiet = random_rows(4, 20)
    loud = quiet.clone()
    loud[2] *= 1000.0
    results = []
    for second in (quiet, loud):
        normalizer = RewardNormalizer()
        update_rewards(normalizer, quiet)
        results.append(update_rewards(normalizer, second))

    others = [0, 1, 3]
    assert torch.equal(results[0][others], results[1][others])


def test_returns_that_were_not_paid_are_not_learned_from() -> None:
    returns = random_rows(4, 20)
    paid = all_of(returns)
    paid[1, 5:] = False
    normalizer = RewardNormalizer()

    normalizer.normalize_round(returns, returns.double(), paid)

    torch.testing.assert_close(normalizer.scale, returns[paid].double().std(correction=0))


def test_rewards_of_zero_stay_zero() -> None:
    rewards = torch.zeros(2, 5)

    assert torch.equal(update_rewards(RewardNormalizer(), rewards), rewards)


def test_value_scale_pools_at_first_and_moves_slowly_later() -> None:
    normalizer = ValueNormalizer()
    first, second, third = (
        scale * random_rows(1, 20, seed=seed) for seed, scale in enumerate((1.0, 4.0, 9.0))
    )

    normalizer.update(first, all_of(first))
    assert normalizer.scale.item() == 1.0

    normalizer.update(second, all_of(second))
    pooled = torch.cat((first, second), 1).double()
    expected = pooled.var(correction=0)
    torch.testing.assert_close(normalizer.scale, (expected + 1e-4).sqrt())

    normalizer.update(third, all_of(third))
    third = third.double()
    expected = 0.9 * expected + 0.1 * third.var(correction=0)
    expected += 0.9 * 0.1 * (third.mean() - pooled.mean()) ** 2
    torch.testing.assert_close(normalizer.scale, (expected + 1e-4).sqrt())
    torch.testing.assert_close(normalizer.mean, 0.9 * pooled.mean() + 0.1 * third.mean())


def test_values_come_back_from_their_scale() -> None:
    normalizer = ValueNormalizer()
    returns = 300.0 + 50.0 * random_rows(4, 20)
    normalizer.update(returns, all_of(returns))

    torch.testing.assert_close(normalizer.denormalize(normalizer.normalize(returns)), returns)
    assert normalizer.normalize(returns).std().item() == pytest.approx(1.0, abs=0.1)
    assert normalizer.normalize(returns).mean().item() == pytest.approx(0.0, abs=1e-5)


def test_state_of_another_layout_is_refused() -> None:
    stored = ObservationNormalizer(3).state_dict()

    with pytest.raises(ContractError, match=r"shape \(3,\), this run's has \(4,\)"):
        ObservationNormalizer(4).load_state_dict(stored)
