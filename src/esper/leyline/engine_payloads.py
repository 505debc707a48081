"""Payloads of the operational events about the threads, workers and sinks of a run."""

from esper.leyline.payloads import Payload

__all__ = ["LaneStalled", "SinkStopped", "WorkerRestarted"]


class LaneStalled(Payload, frozen=True, kw_only=True):
    """A lane recorded no heartbeat within the deadline (operational)."""

    lane: str
    silent_s: float
    env_ids: tuple[int, ...]
    stack: str


class SinkStopped(Payload, frozen=True, kw_only=True):
    """A sink ended before the run, which goes on (operational)."""

    sink: str
    """Its name, without the target."""
    reason: str
    next_seq: int
    """The sink has confirmed every event before this one."""


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
