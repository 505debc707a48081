"""The entropy coefficient of whole runs follows its schedule, across a resume as well."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simic.training.small_runs import TASK, SmallRun, read_events, small_run

from esper.leyline.payloads import PPOUpdateCompleted
from esper.leyline.telemetry import EventType
from esper.simic.seed_management import calculate_entropy_anneal_steps
from esper.simic.training.vectorized import train_ppo_vectorized

START, END, NUM_ENVS = 0.08, 0.02, 2


def coefficients(run: SmallRun) -> list[float]:
    return [
        update.entropy_coef
        for update in run.data(EventType.PPO_UPDATE_COMPLETED)
        if isinstance(update, PPOUpdateCompleted)
    ]


def annealed(num_updates: int, num_anneal: int) -> float:
    return START + (END - START) * min(num_updates / num_anneal, 1.0)


def test_coefficient_falls_linearly_over_the_episodes_asked_for(tmp_path: Path) -> None:
    run = small_run(
        tmp_path,
        n_episodes=6,
        n_envs=NUM_ENVS,
        entropy_coef_start=START,
        entropy_coef_end=END,
        entropy_coef_min=0.0,
        entropy_anneal_episodes=4 * NUM_ENVS,
    )
    assert coefficients(run) == pytest.approx([annealed(update, 4) for update in range(6)])


def test_coefficient_never_falls_below_its_minimum(tmp_path: Path) -> None:
    run = small_run(
        tmp_path,
        n_episodes=4,
        n_envs=NUM_ENVS,
        entropy_coef_start=START,
        entropy_coef_end=0.0,
        entropy_coef_min=0.05,
        entropy_anneal_episodes=3 * NUM_ENVS,
    )
    assert coefficients(run) == pytest.approx([0.08, 0.08 * 2 / 3, 0.05, 0.05])


def test_without_annealing_the_coefficient_stays_where_it_starts(tmp_path: Path) -> None:
    run = small_run(tmp_path, n_episodes=3, entropy_coef_start=START, entropy_coef_end=END)
    assert coefficients(run) == [START] * 3


def test_a_resumed_run_goes_on_where_its_schedule_was(tmp_path: Path) -> None:
    settings = {
        "entropy_coef_start": START,
        "entropy_coef_end": END,
        "entropy_coef_min": 0.0,
        "entropy_anneal_episodes": 4 * NUM_ENVS,
        "n_envs": NUM_ENVS,
    }
    whole = small_run(tmp_path / "whole", n_episodes=5, **settings)
    train_ppo_vectorized(task=TASK, n_episodes=2, telemetry_dir=tmp_path / "cut", **settings)
    train_ppo_vectorized(telemetry_dir=tmp_path / "cut", resume_path="latest", n_episodes=5)
    (log,) = (tmp_path / "cut").glob("*/events.jsonl")
    resumed = SmallRun(directory=log.parent, events=read_events(log), result=None, error=None)
    assert coefficients(resumed) == coefficients(whole)
    assert len(set(coefficients(whole))) == 5


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_annealing_lasts_at_least_as_many_episodes_as_asked_for(
    anneal_episodes: int, num_envs: int
) -> None:
    num_updates = calculate_entropy_anneal_steps(anneal_episodes, num_envs)
    assert num_updates * num_envs >= anneal_episodes > (num_updates - 1) * num_envs or (
        anneal_episodes == num_updates == 0
    )
