"""PPO updates of whole runs, one or several per round, and how their metrics are merged."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.builders.fingerprints import digest_of
from tests.builders.tiny_runs import tiny_run
from tests.simic.training.checkpoints.test_resuming import interrupted_run, resume
from tests.simic.training.runs import last_checkpoint, lines_of, weights_digest
from tests.simic.training.small_runs import SmallRun, lively_run

from esper.leyline.errors import InvalidValueError
from esper.leyline.telemetry import EventType
from esper.simic.agent import ppo_update
from esper.simic.agent.ppo_metrics import PPOMetrics, ppo_update_event
from esper.simic.seed_management import aggregate_ppo_metrics, run_ppo_updates
from esper.simic.training import policy_controller
from esper.simic.training.checkpoints.checkpoint_store import read_checkpoint

SHAPE = {
    "n_envs": 4,
    "max_epochs": 3,
    "n_episodes": 2,
    "lstm_hidden_dim": 16,
    "recurrent_n_epochs": 2,
}
UNHINDERED = {**SHAPE, "target_kl": None}
"""Nothing stops an update early."""


def run(directory: Path, num_updates: int, **training: Any) -> SmallRun:
    return lively_run(directory, ppo_updates_per_batch=num_updates, **{**UNHINDERED, **training})


def updates_of(found: SmallRun) -> list[Any]:
    return found.data(EventType.PPO_UPDATE_COMPLETED)


def weights_of(found: SmallRun) -> str:
    assert found.result is not None
    assert found.result.agent is not None
    return digest_of(found.result.agent.network.state_dict())


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return run(tmp_path_factory.mktemp("once"), 1)


@pytest.fixture(scope="module")
def thrice(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return run(tmp_path_factory.mktemp("thrice"), 3)


def test_three_updates_take_three_times_the_optimizer_steps(
    once: SmallRun, thrice: SmallRun
) -> None:
    steps = [update.num_optimizer_steps for update in updates_of(once)]
    assert steps == [2 * 4] * 2, "inner epochs times minibatches"
    assert [update.num_optimizer_steps for update in updates_of(thrice)] == [3 * 8] * 2
    assert [update.num_updates for update in updates_of(once)] == [1, 1]
    assert [update.num_updates for update in updates_of(thrice)] == [3, 3]
    assert weights_of(once) != weights_of(thrice)


def test_several_updates_learn_from_one_rollout(once: SmallRun, thrice: SmallRun) -> None:
    first, same = updates_of(once)[0], updates_of(thrice)[0]
    for name in ("return_mean", "advantage_std", "usable_steps", "value_mean", "op_q_values"):
        assert getattr(first, name) == getattr(same, name), name
    assert thrice.result is not None
    assert thrice.result.agent is not None
    assert thrice.result.agent.num_updates == SHAPE["n_episodes"], "schedules follow rounds"


def test_normalisers_learn_once_per_round(once: SmallRun, thrice: SmallRun) -> None:
    for found in (once, thrice):
        stored = read_checkpoint(last_checkpoint(found.directory))
        for name in ("obs_normalizer", "reward_normalizer"):
            assert int(stored[name]["num_rounds"]) == SHAPE["n_episodes"]


def test_every_update_has_an_order_of_rows_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[list[list[int]]] = []
    plain = ppo_update.minibatch_rows

    def noted(*args: Any) -> Any:
        rows = list(plain(*args))
        orders.append(rows)
        return rows

    monkeypatch.setattr(ppo_update, "minibatch_rows", noted)
    run(tmp_path / "thrice", 3, n_episodes=1, n_envs=8)
    several = [tuple(map(tuple, rows)) for rows in orders]
    orders.clear()
    run(tmp_path / "once", 1, n_episodes=1, n_envs=8)

    assert several[:2] == [tuple(map(tuple, rows)) for rows in orders]
    assert len({tuple(several[first : first + 2]) for first in (0, 2, 4)}) == 3


def test_metrics_of_a_rounds_updates_are_merged_into_its_one_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series: list[tuple[PPOMetrics, ...]] = []

    def noted(update: Callable[[int], PPOMetrics], num_updates: int) -> tuple[PPOMetrics, ...]:
        series.append(run_ppo_updates(update, num_updates))
        return series[-1]

    monkeypatch.setattr(policy_controller, "run_ppo_updates", noted)
    found = run(tmp_path, 3)

    assert [len(updates) for updates in series] == [3, 3]
    for updates, event in zip(series, updates_of(found), strict=True):
        losses = [update.losses for update in updates]
        assert event.num_optimizer_steps == sum(one.num_optimizer_steps for one in updates)
        assert event.kl_divergence == max(one.kl_divergence for one in updates)
        assert event.value_loss == pytest.approx(statistics.fmean(one.value_loss for one in losses))
        assert len({one.value_loss for one in losses}) == 3, "the updates do not differ"
        merged = ppo_update_event(aggregate_ppo_metrics(updates), event.update_ms)
        assert merged == event


def test_a_kl_stop_ends_the_series(tmp_path: Path) -> None:
    found = run(tmp_path, 50, target_kl=0.001, n_episodes=1, lr=0.01)
    (update,) = updates_of(found)

    assert update.kl_stop_epoch is not None
    assert 1 <= update.num_updates < 50
    assert update.lstm_update is not None, "an update took a step"


def test_the_first_update_is_the_same_whatever_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[int, list[float]] = {}
    for num_updates in (1, 3):
        kls: list[float] = []
        verdict = ppo_update.materialize_verdict

        def noted(kl: Any, *rest: Any, kls: list[float] = kls, verdict: Any = verdict) -> Any:
            kls.append(float(kl))
            return verdict(kl, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(ppo_update, "materialize_verdict", noted)
            run(tmp_path / str(num_updates), num_updates, n_episodes=1)
        found[num_updates] = kls

    assert found[3][:8] == found[1]
    assert abs(found[3][0]) < 1e-8, "old log-probs are those of the rollout"
    assert found[3][8] > 1e-8, "the second update compares with the rollout, not with the first"


@pytest.mark.parametrize("after_batches", [20, 33])
def test_interrupted_and_resumed_run_with_several_updates_equals_the_uninterrupted_one(
    after_batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"n_episodes": 3, "ppo_updates_per_batch": 3, "target_kl": None}
    whole = tiny_run(tmp_path / "whole", **settings).run_dir
    part = interrupted_run(tmp_path / "part", monkeypatch, after_batches=after_batches, **settings)
    resume(part)

    assert weights_digest(last_checkpoint(part)) == weights_digest(last_checkpoint(whole))
    assert lines_of(part) == lines_of(whole)


def test_fewer_than_one_update_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"training\.ppo_updates_per_batch"):
        run(tmp_path, 0)
