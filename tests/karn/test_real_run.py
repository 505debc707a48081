"""The view of a run that was really trained: every section filled, every number that of the log."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from esper.karn.view.view_feed import read_run
from esper.karn.view.view_model import ViewModel
from esper.leyline import payloads
from esper.leyline.actions import Head
from esper.leyline.telemetry import Event, EventType, decode_event

NUM_ROUNDS, NUM_ENVS, NUM_STEPS = 2, 2, 14


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train for a moment, in a process of its own that may load torch."""
    telemetry_dir = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "esper.scripts.train", "ppo", "--task", "digits"]
    sizes = {"rounds": NUM_ROUNDS, "envs": NUM_ENVS, "episode-length": NUM_STEPS, "lanes": 1}
    sizes["batch-size"] = 250
    flags = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    subprocess.run(
        [*command, *flags, "--telemetry-dir", str(telemetry_dir)],
        check=True,
        capture_output=True,
        timeout=100,
    )
    (found,) = telemetry_dir.iterdir()
    return found


@pytest.fixture(scope="module")
def events(run_dir: Path) -> list[Event]:
    lines = (run_dir / "events.jsonl").read_bytes().splitlines()
    return [decode_event(line) for line in lines]


@pytest.fixture(scope="module")
def model(run_dir: Path) -> ViewModel:
    return read_run(run_dir)


def test_run_is_complete_and_nothing_is_missing(model: ViewModel, events: list[Event]) -> None:
    view = model.snapshot()
    assert (view.progress.status, view.progress.fraction) == ("completed", 1.0)
    assert view.progress.rounds_completed == NUM_ROUNDS
    assert view.progress.episodes_completed == NUM_ROUNDS * NUM_ENVS
    assert (view.bus.num_missed, view.bus.num_unreadable) == (0, 0)
    assert view.bus.counts == dict(sorted(Counter(event.event_type for event in events).items()))


def test_rounds_carry_update_actions_growth_and_pace(model: ViewModel) -> None:
    rounds = model.snapshot().rounds
    assert [row.round for row in rounds] == list(range(NUM_ROUNDS))
    for row in rounds:
        assert row.mean_accuracy_pct is not None
        assert row.low_accuracy_pct is not None
        assert row.high_accuracy_pct is not None
        assert row.low_accuracy_pct <= row.mean_accuracy_pct <= row.high_accuracy_pct
        assert row.actions is not None
        assert sum(row.actions.counts.values()) == NUM_ENVS * NUM_STEPS
        assert row.env_steps_per_s is not None
        assert row.policy is not None
        assert set(row.policy.heads) == {head.value for head in Head}
        assert row.policy.kl_divergence is not None


def test_envs_show_the_last_episode_to_its_end(model: ViewModel, events: list[Event]) -> None:
    outcomes = {
        event.env_id: event.data
        for event in events
        if isinstance(event.data, payloads.EpisodeOutcome)
    }
    envs = model.snapshot().envs
    assert [env.env_id for env in envs] == list(range(NUM_ENVS))
    for env in envs:
        outcome = outcomes[env.env_id]
        assert env.status == "done"
        assert env.total_reward == outcome.total_reward
        assert env.task_return == outcome.task_return is not None
        assert env.accuracy_pct == outcome.final_accuracy_pct
        assert env.best_accuracy_pct == outcome.best_accuracy_pct
        assert (env.num_germinated, env.num_pruned) == (outcome.num_germinated, outcome.num_pruned)
        assert env.previous is not None


def test_reward_terms_add_up_to_the_reward_of_the_episode(model: ViewModel) -> None:
    for env in model.snapshot().envs:
        detail = model.detail(env.env_id)
        assert detail is not None
        assert len(detail.steps) == len(detail.rewards) == NUM_STEPS
        total = sum(detail.reward_components.values())
        assert total == pytest.approx(env.total_reward, abs=1e-6)


def test_growth_is_what_the_seed_events_say(model: ViewModel, events: list[Event]) -> None:
    counts = Counter(event.event_type for event in events)
    view = model.snapshot()
    assert view.growth.num_germinated == counts[EventType.SEED_GERMINATED] > 0
    assert view.growth.num_pruned == counts[EventType.SEED_PRUNED]
    assert view.growth.num_fossilized == counts[EventType.SEED_FOSSILIZED]
    assert view.growth.blueprints is not None
    assert len(view.seeds) == counts[EventType.SEED_GERMINATED]
    assert {seed.fate for seed in view.seeds} <= {"fossilized", "pruned", "ended"}


def test_time_by_phase_is_known(model: ViewModel) -> None:
    assert {phase.phase for phase in model.snapshot().resources.phases}
