"""What a sink is: the protocol that a plug-in of the group `esper.sinks` implements."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from esper.leyline.manifest import RunManifest
from esper.leyline.payloads import TrainingStarted
from esper.leyline.telemetry import Event

__all__ = ["Sink", "SinkOpener", "SinkRequest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkRequest:
    """What a sink is opened for."""

    run_dir: Path
    target: str | None
    """What `--sink` names behind the colon; None if there is none."""
    manifest: RunManifest | None
    """None for a log without one."""
    started: TrainingStarted | None
    """The first event, if it was delivered before; None if it is still to come."""
    is_continued: bool
    """Whether this sink was opened for this run before, and may have got some of the events."""


class Sink(Protocol):
    """Gets the events of one run, each at least once and in the order of the log."""

    def write(self, events: Sequence[Event]) -> None:
        """Store events. They count as delivered when this returns; an exception ends the sink."""

    def close(self) -> None:
        """Finish: no more events will come."""


SinkOpener: TypeAlias = Callable[[SinkRequest], Sink]
"""What an entry point of the group `esper.sinks` names."""
