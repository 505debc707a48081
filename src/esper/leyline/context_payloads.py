"""The event that records the context of an episode."""

from esper.leyline.payloads import Payload

__all__ = ["EpisodeContextDrawn"]


class EpisodeContextDrawn(Payload, frozen=True, kw_only=True):
    """The variant of the task that an episode takes place in; no controller is told.

    Only tasks with contexts have it, before the first step of each episode.
    """

    context: str
    is_permuted: bool
    """Whether the pixels of all images are in the same random order."""
    label_noise: float
    """Share of the labels that are replaced by another class."""
    input_scale: float
    kernel_size: int | None
    """Of the host's convolutions; None is the task's, here and below."""
    base_channels: int | None
    num_blocks: int | None
    sterile_share: float
    sterile_seeds: tuple[int, ...]
    """Numbers, by order of germination, of the seeds that would never learn."""
