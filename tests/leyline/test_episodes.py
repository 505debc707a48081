"""How episodes are numbered, and which step ends one."""

import pytest

from esper.leyline.episodes import episode_id_of, is_last_step


def test_episodes_are_numbered_without_gaps_round_by_round() -> None:
    ids = [episode_id_of(index, env_id, num_envs=3) for index in range(4) for env_id in range(3)]
    assert ids == list(range(12))


@pytest.mark.parametrize("num_steps", [1, 2, 40])
def test_only_the_step_before_the_length_of_an_episode_is_its_last(num_steps: int) -> None:
    last = [step for step in range(num_steps) if is_last_step(step, num_steps)]
    assert last == [num_steps - 1]
