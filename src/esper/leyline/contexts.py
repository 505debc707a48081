"""Contexts: variants of a task, one of which is drawn for each episode; no policy is told."""

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from esper.leyline.streams import StreamPurpose, stream_seed

__all__ = ["ContextSpec", "draw_context", "draw_sterile_seeds"]


class ContextSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one variant changes of its task; the defaults change nothing."""

    name: str
    summary: str = ""
    weight: float = 1.0
    """Share of the episodes, relative to the other variants; 0 is drawn only on request."""
    kernel_size: int | None = None
    """Of the host's convolutions; None keeps the task's, here and below."""
    base_channels: int | None = None
    num_blocks: int | None = None
    is_permuted: bool = False
    """The pixels of all images are in the same random order."""
    label_noise: float = 0.0
    """Share of the labels that are replaced by another class, in every split."""
    input_scale: float = 1.0
    """Factor of the normalised inputs."""
    sterile_share: float = 0.0
    """Probability that a seed is sterile: it stays the identity that it is born as."""

    @property
    def changes_data(self) -> bool:
        """Return whether the data differ from the task's."""
        return self.is_permuted or self.label_noise > 0.0 or self.input_scale != 1.0

    @property
    def host_changes(self) -> dict[str, int]:
        """Return the fields of the host's description that differ from the task's."""
        fields = ("kernel_size", "base_channels", "num_blocks")
        return {name: value for name in fields if (value := getattr(self, name)) is not None}


def draw_context(
    contexts: Sequence[ContextSpec],
    weights: Mapping[str, float],
    *,
    run_seed: int,
    round_index: int,
    env_id: int,
) -> ContextSpec:
    """Draw the context of an episode from a stream of its own; it depends on nothing else.

    Args:
        contexts: those to choose from.
        weights: replaces the contexts' own weights; contexts that it does not name have none.
        run_seed: seed of the run.
        round_index: the round.
        env_id: the env.
    """
    shares = [weights.get(item.name, 0.0) if weights else item.weight for item in contexts]
    (drawn,) = _stream(StreamPurpose.CONTEXT, run_seed, round_index, env_id).choices(
        contexts, shares
    )
    return drawn


def draw_sterile_seeds(
    context: ContextSpec, *, run_seed: int, round_index: int, env_id: int, num_seeds: int
) -> tuple[bool, ...]:
    """Draw which seeds of an episode are sterile, in the order of germination."""
    # Drawn at the start of an episode, so that no draw depends on a decision.
    stream = _stream(StreamPurpose.SEED_LUCK, run_seed, round_index, env_id)
    return tuple(stream.random() < context.sterile_share for _ in range(num_seeds))


def _stream(purpose: StreamPurpose, run_seed: int, round_index: int, env_id: int) -> Random:
    return Random(stream_seed(run_seed, purpose=purpose, round=round_index, env=env_id))
