"""Escrow in whole runs: accounts get real evidence, are carried from step to step, and close."""

import itertools
from collections import defaultdict
from pathlib import Path

import pytest
from tests.simic.training.small_runs import LENIENT, SmallRun, lively_run, small_run

from esper.leyline.actions import Op
from esper.leyline.payloads import EpochCompleted, LastAction
from esper.leyline.rewards import RewardInputs, RewardMode, RewardResult
from esper.leyline.telemetry import EventType
from esper.simic.rewards.scheme import RewardScheme
from esper.simic.training import reward_ledger
from esper.simic.training.reward_ledger import compute_reward

WINDOW = 3

Rewarded = list[tuple[RewardInputs, RewardResult]]


@pytest.fixture(scope="module")
def run_and_rewards(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallRun, Rewarded]:
    """A run in escrow mode, and what its rewards were computed from, in program order."""
    rewarded: Rewarded = []

    def noted(inputs: RewardInputs, scheme: RewardScheme) -> RewardResult:
        assert scheme.mode is RewardMode.ESCROW
        result = compute_reward(inputs, scheme)
        rewarded.append((inputs, result))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reward_ledger, "compute_reward", noted)
        run = small_run(
            tmp_path_factory.mktemp("runs"),
            command="heuristic",
            task="digits",
            n_episodes=1,
            n_envs=2,
            max_epochs=30,
            lifecycle=LENIENT,
            reward_mode="escrow",
            reward={"escrow_stable_window": WINDOW},
        )
    assert run.error is None
    return run, rewarded


def actions_by_episode(run: SmallRun) -> dict[int, list[LastAction]]:
    found: dict[int, list[LastAction]] = defaultdict(list)
    for event in run.of(EventType.LAST_ACTION):
        assert isinstance(event.data, LastAction)
        assert event.episode_id is not None
        found[event.episode_id].append(event.data)
    return found


def inputs_by_env(rewarded: Rewarded, num_envs: int) -> list[Rewarded]:
    """Split what was rewarded by env: control goes through them in order, step by step."""
    return [rewarded[env_id::num_envs] for env_id in range(num_envs)]


def test_what_an_episode_was_paid_is_what_its_fossils_keep(
    run_and_rewards: tuple[SmallRun, Rewarded],
) -> None:
    run, _ = run_and_rewards
    kept_somewhere = paid_somewhere = False
    for actions in actions_by_episode(run).values():
        parts = [action.reward_components for action in actions]
        balance = sum(part.escrow_delta + part.escrow_forfeit for part in parts)
        paid_somewhere |= any(part.escrow_delta > 0.0 for part in parts)
        keeps = [
            action
            for action in actions
            if action.effective_op == Op.FOSSILIZE.name and action.succeeded
        ]
        if keeps:
            kept_somewhere = True
            assert balance >= -1e-9
        else:
            assert balance == pytest.approx(0.0, abs=1e-9)
    assert paid_somewhere
    assert kept_somewhere, "no episode kept a seed, so the test has seen one side only"


def test_credit_is_carried_from_step_to_step(run_and_rewards: tuple[SmallRun, Rewarded]) -> None:
    _, rewarded = run_and_rewards
    num_carried = 0
    for steps in inputs_by_env(rewarded, 2):
        for (_, before), (inputs, _) in itertools.pairwise(steps):
            if inputs.step == 0:
                assert all(slot.escrow_credit == 0.0 for slot in inputs.memory.slots)
            else:
                assert inputs.memory == before.memory
                num_carried += any(slot.escrow_credit > 0.0 for slot in inputs.memory.slots)
    assert num_carried


def test_worth_is_judged_by_the_lowest_accuracy_of_the_configured_window(
    run_and_rewards: tuple[SmallRun, Rewarded],
) -> None:
    run, rewarded = run_and_rewards
    accuracies: dict[int, list[float]] = defaultdict(list)
    for event in run.of(EventType.EPOCH_COMPLETED):
        assert isinstance(event.data, EpochCompleted)
        assert event.data.val_accuracy_pct is not None
        accuracies[event.episode_id].append(event.data.val_accuracy_pct)
    by_env = inputs_by_env(rewarded, 2)
    for episode_id, seen in accuracies.items():
        round_index, env_id = divmod(episode_id, 2)
        steps = by_env[env_id][round_index * len(seen) : (round_index + 1) * len(seen)]
        for step, (inputs, _) in enumerate(steps):
            window = seen[max(0, step - WINDOW + 1) : step + 1]
            assert inputs.stable_accuracy_pct == min(window)


def test_events_carry_what_the_accounts_paid(run_and_rewards: tuple[SmallRun, Rewarded]) -> None:
    run, rewarded = run_and_rewards
    reported = [
        (action.reward_components.escrow_delta, action.reward_components.escrow_forfeit)
        for action in (event.data for event in run.of(EventType.LAST_ACTION))
        if isinstance(action, LastAction)
    ]
    paid = [
        (result.components.escrow_delta, result.components.escrow_forfeit) for _, result in rewarded
    ]
    assert reported == paid


def test_other_modes_open_no_account(tmp_path: Path) -> None:
    run = lively_run(tmp_path, reward_mode="shaped", n_episodes=1)
    for actions in actions_by_episode(run).values():
        parts = [action.reward_components for action in actions]
        assert all(part.escrow_delta == part.escrow_forfeit == 0.0 for part in parts)
