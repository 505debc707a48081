"""Same seed, same bits: for any number of lanes, any telemetry, beside any loop."""

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.builders.tiny_runs import tiny_run
from tests.builders.tiny_tasks import TINY, TINY_LM
from tests.simic.training.runs import last_checkpoint, lines_of, weights_digest

from esper.leyline.telemetry import EventType

ENVS = 4


def bits_of(run_dir: Path) -> str:
    return weights_digest(last_checkpoint(run_dir))


@pytest.fixture(scope="module", params=[TINY, TINY_LM])
def one_lane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A task, and a run of it on one lane; the tasks have augmentation and dropout."""
    directory = tmp_path_factory.mktemp("one_lane")
    return request.param, tiny_run(
        directory, task=request.param, n_envs=ENVS, run={"lanes": 1}
    ).run_dir


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_same_seed_gives_the_same_bits_and_lines_for_any_number_of_lanes(
    lanes: int, one_lane: tuple[str, Path], tmp_path: Path
) -> None:
    task, expected = one_lane

    run_dir = tiny_run(tmp_path, task=task, n_envs=ENVS, run={"lanes": lanes}).run_dir

    assert lines_of(run_dir) == lines_of(expected)
    assert bits_of(run_dir) == bits_of(expected)


def test_another_seed_gives_other_bits(one_lane: tuple[str, Path], tmp_path: Path) -> None:
    task, expected = one_lane

    run_dir = tiny_run(tmp_path, task=task, n_envs=ENVS, seed=43).run_dir

    assert bits_of(run_dir) != bits_of(expected)
    assert lines_of(run_dir)[2:] != lines_of(expected)[2:]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("plain")).run_dir


@pytest.mark.parametrize("level", ["off", "minimal", "debug"])
def test_telemetry_level_changes_no_weight(level: str, plain: Path, tmp_path: Path) -> None:
    run_dir = tiny_run(tmp_path, telemetry={"level": level}).run_dir

    assert bits_of(run_dir) == bits_of(plain)


def test_profiler_changes_nothing_but_its_own_events(plain: Path, tmp_path: Path) -> None:
    run_dir = tiny_run(tmp_path, run={"profiler": {"phases": False}}).run_dir

    profiles = frozenset({EventType.PHASE_PROFILE_COMPLETED})
    assert bits_of(run_dir) == bits_of(plain)
    found, expected = (
        [_without_numbers(line) for line in lines_of(path, without=profiles)]
        for path in (run_dir, plain)
    )
    assert found == expected


def _without_numbers(line: bytes) -> dict[str, Any]:
    """Leave out what counts events, as there are fewer of them without the profiler's."""
    event: dict[str, Any] = msgspec.json.decode(line)
    del event["seq"]
    event["data"].pop("log_seq", None)
    return event


@pytest.mark.parametrize("command", ["ppo", "random", "heuristic"])
def test_run_leaves_the_global_random_states_and_thread_count_as_they_were(
    command: str, tmp_path: Path
) -> None:
    before_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        tiny_run(tmp_path, n_episodes=1, command=command)

        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]
        assert repr(np.random.get_state()) == repr(states[2])
    finally:
        torch.set_num_threads(before_threads)


def test_global_random_states_decide_nothing(plain: Path, tmp_path: Path) -> None:
    torch.manual_seed(123)
    random.seed(123)

    run_dir = tiny_run(tmp_path).run_dir

    assert bits_of(run_dir) == bits_of(plain)
    assert lines_of(run_dir) == lines_of(plain)


def test_number_of_threads_is_restored_after_a_failure(tmp_path: Path) -> None:
    before_threads = torch.get_num_threads()
    blocked = tmp_path / "file"
    blocked.write_text("in the way")

    with pytest.raises(Exception, match="file"):
        tiny_run(blocked)

    assert torch.get_num_threads() == before_threads
