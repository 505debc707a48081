"""Running statistics against closed forms."""

import pytest
import torch
from torch import Tensor

from esper.leyline.errors import ContractError
from esper.simic.normalizers import ObservationNormalizer, RewardNormalizer, ValueNormalizer


def random_rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def all_of(rows: Tensor) -> Tensor:
    return torch.ones(rows.shape, dtype=torch.bool)


def test_observation_moments_are_those_of_the_mixture_of_old_and_new() -> None:
    normalizer = ObservationNormalizer(3)
    batch = 5.0 + 2.0 * random_rows(1000, 3)
    old_mean, old_var = normalizer.mean.clone(), normalizer.var.clone()

    normalizer.update(batch)

    new_mean, new_var = batch.double().mean(0), batch.double().var(0, correction=0)
    mean = 0.99 * old_mean + 0.01 * new_mean
    second_moment = 0.99 * (old_var + old_mean**2) + 0.01 * (new_var + new_mean**2)
    torch.testing.assert_close(normalizer.mean, mean)
    torch.testing.assert_close(normalizer.var, second_moment - mean**2)


def test_observations_are_centred_scaled_and_clipped() -> None:
    normalizer = ObservationNormalizer(2)
    for seed in range(600):
        normalizer.update(torch.tensor([3.0, -1.0]) + 2.0 * random_rows(256, 2, seed=seed))

    normalized = normalizer.normalize(torch.tensor([3.0, -1.0]) + 2.0 * random_rows(5000, 2))

    torch.testing.assert_close(normalized.mean(0), torch.zeros(2), atol=0.1, rtol=0)
    torch.testing.assert_close(normalized.std(0), torch.ones(2), atol=0.1, rtol=0)
    assert normalizer.normalize(torch.tensor([1e9, -1e9])).tolist() == [10.0, -10.0]
    assert normalized.dtype == torch.float32


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


def test_rewards_are_divided_by_the_std_of_the_rounds_before() -> None:
    normalizer = RewardNormalizer()
    rounds = [scale * random_rows(4, 20, seed=seed) for seed, scale in enumerate((3.0, 1.0, 7.0))]

    normalized = [normalizer.normalize_round(rewards, all_of(rewards)) for rewards in rounds]

    own = rounds[0].double().std()
    torch.testing.assert_close(normalized[0], (rounds[0] / own).float())
    torch.testing.assert_close(normalized[1], (rounds[1] / own).float())
    both = torch.cat(rounds[:2]).double().std()
    torch.testing.assert_close(normalized[2], (rounds[2] / both).clamp(-10, 10).float())


def test_rewards_keep_their_zero_and_their_sign() -> None:
    normalizer = RewardNormalizer()
    rewards = 5.0 + random_rows(4, 20)
    normalizer.normalize_round(rewards, all_of(rewards))

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
        normalizer.normalize_round(quiet, all_of(quiet))
        results.append(normalizer.normalize_round(second, all_of(second)))

    others = [0, 1, 3]
    assert torch.equal(results[0][others], results[1][others])


def test_rewards_that_were_not_paid_are_not_learned_from() -> None:
    rewards = random_rows(4, 20)
    paid = all_of(rewards)
    paid[1, 5:] = False
    normalizer = RewardNormalizer()

    normalizer.normalize_round(torch.where(paid, rewards, 0.0), paid)

    torch.testing.assert_close(normalizer.std, rewards[paid].double().std())


@pytest.mark.parametrize("reward", [0.0, 0.25])
def test_constant_reward_is_left_as_it_is(reward: float) -> None:
    rewards = torch.full((2, 5), reward)

    normalized = RewardNormalizer().normalize_round(rewards, all_of(rewards))

    assert torch.equal(normalized, rewards)


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
    expected = 0.99 * expected + 0.01 * third.var(correction=0)
    expected += 0.99 * 0.01 * (third.mean() - pooled.mean()) ** 2
    torch.testing.assert_close(normalizer.scale, (expected + 1e-4).sqrt())


def test_values_come_back_from_their_scale() -> None:
    normalizer = ValueNormalizer()
    returns = 50.0 * random_rows(4, 20)
    normalizer.update(returns, all_of(returns))

    torch.testing.assert_close(normalizer.denormalize(normalizer.normalize(returns)), returns)
    assert normalizer.normalize(returns).std().item() == pytest.approx(1.0, abs=0.1)


def test_state_of_another_layout_is_refused() -> None:
    stored = ObservationNormalizer(3).state_dict()

    with pytest.raises(ContractError, match=r"shape \(3,\), this run's has \(4,\)"):
        ObservationNormalizer(4).load_state_dict(stored)
