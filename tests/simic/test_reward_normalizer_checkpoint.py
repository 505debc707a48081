"""Normalisers survive a checkpoint bit by bit."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from esper.simic.normalizers import ObservationNormalizer, RewardNormalizer, ValueNormalizer


def random_rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def through_a_file(state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    torch.save(state, path)
    return torch.load(path, weights_only=True)


def trained_rewards(num_rounds: int) -> RewardNormalizer:
    normalizer = RewardNormalizer()
    for seed in range(num_rounds):
        rewards = 3.0 * random_rows(4, 9, seed=seed)
        normalizer.normalize_round(rewards, torch.ones(4, 9, dtype=torch.bool))
    return normalizer


@pytest.mark.parametrize("num_rounds", [0, 1, 5])
def test_loaded_reward_normalizer_goes_on_as_if_never_stopped(
    num_rounds: int, tmp_path: Path
) -> None:
    original, loaded = trained_rewards(num_rounds), RewardNormalizer()
    loaded.load_state_dict(through_a_file(original.state_dict(), tmp_path / "state"))
    probe, paid = random_rows(4, 9, seed=99), torch.ones(4, 9, dtype=torch.bool)

    for _ in range(2):
        expected = original.normalize_round(probe, paid)
        assert torch.equal(expected, loaded.normalize_round(probe, paid))
    assert torch.equal(original.std, loaded.std)


def test_loaded_observation_normalizer_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    original, loaded = ObservationNormalizer(5), ObservationNormalizer(5)
    original.update(2.0 + random_rows(30, 5))
    loaded.load_state_dict(through_a_file(original.state_dict(), tmp_path / "state"))
    probe = random_rows(7, 5, seed=99)

    assert torch.equal(original.normalize(probe), loaded.normalize(probe))
    original.update(probe)
    loaded.update(probe)
    assert torch.equal(original.var, loaded.var)


def test_loaded_value_normalizer_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    original, loaded = ValueNormalizer(), ValueNormalizer()
    returns, valid = random_rows(4, 9), torch.ones(4, 9, dtype=torch.bool)
    original.update(returns, valid)
    loaded.load_state_dict(through_a_file(original.state_dict(), tmp_path / "state"))

    for normalizer in (original, loaded):
        normalizer.update(5.0 * returns, valid)
    assert torch.equal(original.scale, loaded.scale)


def test_stored_state_does_not_follow_later_learning() -> None:
    normalizer = trained_rewards(2)
    state = normalizer.state_dict()
    before = {name: value.clone() for name, value in state.items()}

    rewards = 50.0 * random_rows(4, 9)
    normalizer.normalize_round(rewards, torch.ones(4, 9, dtype=torch.bool))

    assert all(torch.equal(before[name], value) for name, value in state.items())
