"""Normalisers survive a checkpoint bit by bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.simic.training.small_runs import TASK
from torch import Tensor

from esper.leyline.payloads import RewardSummary
from esper.leyline.telemetry import EventType
from esper.nissa.bus.recording_hub import RecordingHub
from esper.runtime.batches import SharedBatchIterator
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.normalizers import ObservationNormalizer, RewardNormalizer, ValueNormalizer
from esper.simic.training import vectorized


def random_rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def through_a_file(state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    torch.save(state, path)
    return torch.load(path, weights_only=True)


def trained_rewards(num_rounds: int) -> RewardNormalizer:
    normalizer = RewardNormalizer()
    for seed in range(num_rounds):
        rewards = 3.0 * random_rows(4, 9, seed=seed)
        normalizer.normalize_round(rewards, rewards, torch.ones(4, 9, dtype=torch.bool))
    return normalizer


@pytest.mark.parametrize("num_rounds", [0, 1, 5])
def test_loaded_reward_normalizer_goes_on_as_if_never_stopped(
    num_rounds: int, tmp_path: Path
) -> None:
    original, loaded = trained_rewards(num_rounds), RewardNormalizer()
    loaded.load_state_dict(through_a_file(original.state_dict(), tmp_path / "state"))
    probe, paid = random_rows(4, 9, seed=99), torch.ones(4, 9, dtype=torch.bool)

    for _ in range(2):
        expected = original.normalize_round(probe, probe, paid)
        assert torch.equal(expected, loaded.normalize_round(probe, probe, paid))
    assert torch.equal(original.scale, loaded.scale)


def test_loaded_observation_normalizer_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    original, loaded = ObservationNormalizer(5), ObservationNormalizer(5)
    original.update(2.0 + random_rows(30, 5))
    loaded.load_state_dict(through_a_file(original.state_dict(), tmp_path / "state"))
    probe = random_rows(7, 5, seed=99)

    assert torch.equal(original.normalize(probe), loaded.normalize(probe))
    original.update(probe)
    loaded.update(probe)
    assert torch.equal(original.scale, loaded.scale)


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
    normalizer.normalize_round(rewards, rewards, torch.ones(4, 9, dtype=torch.bool))

    assert all(torch.equal(before[name], value) for name, value in state.items())


class Normalizers:
    """Every reward normaliser that runs have made, and what each was asked to normalise."""

    def __init__(self) -> None:
        self.made: list[RewardNormalizer] = []
        self.stds: list[float] = []
        """After each round, of whichever run."""

    def replacement(self) -> type[RewardNormalizer]:
        witness = self

        class Noted(RewardNormalizer):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                witness.made.append(self)

            def normalize_round(self, rewards: Tensor, returns: Tensor, is_paid: Tensor) -> Tensor:
                normalized = super().normalize_round(rewards, returns, is_paid)
                witness.stds.append(float(self.scale))
                return normalized

        return Noted


def train(telemetry_dir: Path, **arguments: Any) -> None:
    vectorized.train_ppo_vectorized(telemetry_dir=telemetry_dir, **arguments)


def test_a_resumed_run_normalises_rewards_as_if_it_had_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = Normalizers(), Normalizers()
    monkeypatch.setattr(vectorized, "RewardNormalizer", whole.replacement())
    train(tmp_path / "whole", task=TASK, n_episodes=4)
    monkeypatch.setattr(vectorized, "RewardNormalizer", cut.replacement())
    train(tmp_path / "cut", task=TASK, n_episodes=2)
    train(tmp_path / "cut", resume_path="latest", n_episodes=4)

    assert len(cut.made) == 2, "the resumed run has a normaliser of its own"
    assert len(whole.stds) == 4
    assert len(set(whole.stds)) == 4, "the deviation never changed, so nothing was compared"
    assert cut.stds == whole.stds
    for name, value in whole.made[0].state_dict().items():
        assert torch.equal(value, cut.made[1].state_dict()[name]), name


def test_the_agent_is_loaded_from_the_checkpoint_that_carries_the_normaliser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, task=TASK, n_episodes=1)
    loaded: list[tuple[Path, dict[str, Any]]] = []
    load = PPOAgent.load

    def noted(path: Path | str, **options: Any) -> PPOAgent:
        loaded.append((Path(path), options))
        return load(path, **options)

    monkeypatch.setattr(vectorized.PPOAgent, "load", noted)
    train(tmp_path, resume_path="latest", n_episodes=2)

    ((path, options),) = loaded
    assert path.name == "round-000001.pt"
    stored = torch.load(path, weights_only=True)["reward_normalizer"]
    passed_on = options["checkpoint"]["reward_normalizer"]
    assert passed_on.keys() == stored.keys()
    assert all(torch.equal(passed_on[name], stored[name]) for name in stored)
    fresh = RewardNormalizer().state_dict()
    assert any(not torch.equal(stored[name], fresh[name]) for name in fresh)


def test_a_run_with_a_hub_and_data_of_the_tests_own_reports_the_normalisers_deviation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, normalizers = RecordingHub(), Normalizers()
    passes: list[tuple[int, int]] = []

    class Noting(SharedBatchIterator):
        def batches(self, *, round: int, step: int) -> Iterator[list[Any]]:
            passes.append((round, step))
            return super().batches(round=round, step=step)

    monkeypatch.setattr(vectorized, "get_hub", lambda: hub)
    monkeypatch.setattr(vectorized, "RewardNormalizer", normalizers.replacement())
    monkeypatch.setattr(vectorized, "SharedBatchIterator", Noting)
    train(tmp_path, task=TASK, n_episodes=2, max_epochs=3)

    reported = [event.data for event in hub.of_type(EventType.REWARD_SUMMARY)]
    assert all(isinstance(summary, RewardSummary) for summary in reported)
    assert [summary.reward_scale for summary in reported] == normalizers.stds
    assert {(0, 2), (1, 0), (1, 1), (1, 2)} <= set(passes)
