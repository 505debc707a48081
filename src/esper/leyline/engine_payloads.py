"""Payloads of the operational events about the threads and workers of a run."""

from esper.leyline.payloads import Payload

__all__ = ["LaneStalled", "WorkerRestarted"]


class LaneStalled(Payload, frozen=True, kw_only=True):
    """A lane recorded no heartbeat within the deadline (operational)."""

    lane: str
    silent_s: float
    env_ids: tuple[int, ...]
    stack: str


class WorkerRestarted(Payload, frozen=True, kw_only=True):
    """A lost worker was replaced and has repeated the commands of its round (operational)."""

    worker: int
    reason: str
    """How the worker ended."""
    env_ids: tuple[int, ...]
    """The envs that it owns."""
    num_commands_replayed: int
    """Commands that had been answered before, whose replies were compared."""
    duration_s: float
    """From the detection of the loss until the new worker had caught up."""
    stack: str = ""
    """Stacks of the lost worker's threads, if it hung and could still report them."""
