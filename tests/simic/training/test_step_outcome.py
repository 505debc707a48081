"""What lanes hand over after a step, in real runs: control uses it and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.simic.training.small_runs import SmallRun, break_envs, lively_run, lose_envs

from esper.leyline.messages import Phase
from esper.leyline.telemetry import EventType
from esper.nissa.reading.query import query_logs
from esper.nissa.storage.journal import EVENTS_FILE
from esper.simic.training import action_execution
from esper.simic.training.action_execution import execute_actions
from esper.simic.training.parallel_env_state import ParallelEnvState

NUM_ENVS, NUM_STEPS = 4, 6


def run_four(directory: Path, num_lanes: int = 1, **training: object) -> SmallRun:
    shape = {"n_envs": NUM_ENVS, "max_epochs": NUM_STEPS, "n_episodes": 1}
    # A value head of the smallest task's width has one hidden unit, which may be dead.
    settings = {**shape, "lstm_hidden_dim": 32, "episode_end": "bootstrap", **training}
    return lively_run(directory, run={"lanes": num_lanes}, **settings)


def change_results(patch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Let `change` edit what each call of `execute_actions` returns."""

    def changed(*args: Any, **options: Any) -> Any:
        result = execute_actions(*args, **options)
        change(result)
        return result

    patch.setattr(action_execution, "execute_actions", changed)


def update_of(run: SmallRun) -> Any:
    (update,) = run.data(EventType.PPO_UPDATE_COMPLETED)
    return update


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return run_four(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_a_lane_applies_the_decisions_of_all_its_envs_in_one_call(
    num_lanes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[tuple[int, ...]] = []

    def noted(envs: Any, *args: Any, **options: Any) -> Any:
        groups.append(tuple(getattr(item, "env", item).env_idx for item in envs))
        return execute_actions(envs, *args, **options)

    monkeypatch.setattr(action_execution, "execute_actions", noted)
    run_four(tmp_path, num_lanes)

    expected = [tuple(range(lane, NUM_ENVS, num_lanes)) for lane in range(num_lanes)] * NUM_STEPS
    assert sorted(groups) == sorted(expected)


def test_a_target_that_no_lane_names_is_not_bootstrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop(result: Any) -> None:
        kept = [place for place, (env, _) in enumerate(result.truncated_bootstrap_targets) if env]
        for name in (
            "truncated_bootstrap_targets",
            "post_action_signals",
            "post_action_slot_reports",
            "post_action_masks",
        ):
            items = getattr(result, name) or []
            setattr(result, name, [items[place] for place in kept])

    change_results(monkeypatch, drop)
    run = run_four(tmp_path)

    assert run.error is not None
    assert "envs [0] have an open segment" in str(run.error)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        (
            "post_action_signals",
            lambda signals: msgspec.structs.replace(signals, accuracy_history=(99.0,) * 3),
        ),
        ("post_action_slot_reports", lambda reports: ()),
    ],
)
def test_bootstrap_values_depend_on_what_was_handed_over(
    name: str,
    changed: Callable[[Any], Any],
    plain: SmallRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def change(result: Any) -> None:
        setattr(result, name, [changed(item) for item in getattr(result, name)])

    change_results(monkeypatch, change)
    run = run_four(tmp_path)

    assert run.data(EventType.LAST_ACTION) == plain.data(EventType.LAST_ACTION)
    assert update_of(run).advantage_mean != update_of(plain).advantage_mean


def test_a_bootstrapped_state_without_a_legal_op_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(result: Any) -> None:
        result.post_action_masks = [(False,) * len(row) for row in result.post_action_masks]

    change_results(monkeypatch, forbid)
    run = run_four(tmp_path)

    assert run.error is not None
    assert "env 0, step 5: no op is legal" in str(run.error)


def test_results_of_lanes_are_joined_in_env_order(plain: SmallRun, tmp_path: Path) -> None:
    run = run_four(tmp_path, num_lanes=3)

    assert update_of(run).advantage_mean == update_of(plain).advantage_mean
    assert run.data(EventType.LAST_ACTION) == plain.data(EventType.LAST_ACTION)


def test_a_rolled_back_env_names_no_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[tuple[int, int]] = []
    change_results(monkeypatch, lambda result: named.extend(result.truncated_bootstrap_targets))
    lose_envs(monkeypatch, {(2, NUM_STEPS - 1)})

    run = run_four(tmp_path, num_lanes=2)

    assert run.error is None
    assert sorted(named) == [(env, NUM_STEPS - 1) for env in (0, 1, 3)]


def test_an_episode_that_terminates_names_no_target_and_has_no_value_beyond_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[tuple[int, int]] = []
    change_results(monkeypatch, lambda result: named.extend(result.truncated_bootstrap_targets))

    run = run_four(tmp_path, episode_end="terminate")

    assert run.error is None
    assert named == []
    assert update_of(run).num_optimizer_steps > 0


# --- What envs keep of their episode -------------------------------------------------------------


def sums_by_slot(run: SmallRun, round_index: int) -> dict[str, tuple[int, int, float]]:
    """Add up, decision by decision, what was done to each slot in a round."""
    sums = dict.fromkeys(("r0c0", "r0c1"), (0, 0, 0.0))
    for event in run.of(EventType.LAST_ACTION):
        action: Any = event.data
        if event.round == round_index and action.effective_op != "WAIT":
            decided, succeeded, reward = sums[action.slot_id]
            sums[action.slot_id] = (
                decided + 1,
                succeeded + action.succeeded,
                reward + action.reward,
            )
    return sums


def check_slot_sums(run: SmallRun) -> None:
    rounds: list[Any] = run.data(EventType.ACTION_DISTRIBUTION)
    assert len(rounds) == 2
    for round_index, data in enumerate(rounds):
        reported = {it.slot_id: (it.num_decided, it.num_succeeded, it.reward) for it in data.slots}
        expected = sums_by_slot(run, round_index)
        assert list(reported) == ["r0c0", "r0c1"]
        assert reported == {
            slot_id: (decided, succeeded, pytest.approx(reward, abs=1e-9))
            for slot_id, (decided, succeeded, reward) in expected.items()
        }
        assert sum(decided for decided, _, _ in reported.values()) > 0


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return run_four(tmp_path_factory.mktemp("two"), num_lanes=2, n_episodes=2, max_epochs=12)


def test_a_round_reports_decisions_successes_and_reward_of_each_slot(two_rounds: SmallRun) -> None:
    check_slot_sums(two_rounds)


def test_sums_of_slots_include_envs_that_were_rolled_back_or_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_envs(monkeypatch, {(0, 5), (1, 11)})
    break_envs(monkeypatch, Phase.APPLY, {(2, 7)})
    break_envs(monkeypatch, Phase.TRAIN, {(3, 8)})
    check_slot_sums(run_four(tmp_path, num_lanes=2, n_episodes=2, max_epochs=12))


def test_sums_of_slots_can_be_queried(two_rounds: SmallRun) -> None:
    pytest.importorskip("duckdb")
    rows = query_logs(
        [two_rounds.directory / EVENTS_FILE],
        "SELECT round, slot_id, num_decided, num_succeeded, reward FROM slot_actions "
        "ORDER BY round, slot_id",
    ).rows

    assert [row[:4] for row in rows] == [
        (round_index, slot_id, decided, succeeded)
        for round_index in range(2)
        for slot_id, (decided, succeeded, _) in sums_by_slot(two_rounds, round_index).items()
    ]


def test_a_rollback_names_the_seed_that_was_furthest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_envs(monkeypatch, {(env, step) for env in range(4) for step in (6, 9)})
    run = run_four(tmp_path, max_epochs=12)
    reported = run.of(EventType.GOVERNOR_ROLLBACK)
    assert len(reported) == 8
    seeds = {
        (event.env_id, event.step): event.data.seeds for event in run.of(EventType.EPOCH_COMPLETED)
    }
    for event in reported:
        data: Any = event.data
        here = {seed.slot_id: seed for seed in seeds[event.env_id, event.step]}
        if data.active_slot is None:
            assert data.active_stage is None
            assert not data.pruned_slots
        else:
            assert data.active_slot in data.pruned_slots
            assert here[data.active_slot].stage == data.active_stage
    assert any(event.data.active_slot for event in reported)


def test_control_zeroes_the_memory_of_an_env_because_the_env_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_envs(monkeypatch, {(1, 3)})
    assert run_four(tmp_path / "plain").error is None
    reset = ParallelEnvState.reset_lstm_hidden

    def reset_once(env: ParallelEnvState) -> None:
        if not hasattr(env, "lstm_hidden"):
            reset(env)

    monkeypatch.setattr(ParallelEnvState, "reset_lstm_hidden", reset_once)

    run = run_four(tmp_path / "kept")

    assert "env 1: the policy's LSTM state spans 3 steps, the open segment 0" in str(run.error)
