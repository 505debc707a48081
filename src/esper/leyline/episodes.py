"""How episodes are numbered and when they end."""

__all__ = ["episode_id_of", "is_last_step"]


def episode_id_of(round_index: int, env_id: int, *, num_envs: int) -> int:
    """Return the number of an env's episode, counted over all rounds of a run."""
    return round_index * num_envs + env_id


def is_last_step(step: int, num_steps: int) -> bool:
    """Return whether an episode of `num_steps` steps ends with this step."""
    return step == num_steps - 1
