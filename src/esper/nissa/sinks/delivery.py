"""Delivering a log to a sink: reads from the stored position on, stores it after each batch."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from esper.leyline.errors import EventDecodeError, UnreadableFileError
from esper.leyline.payloads import TrainingStarted
from esper.leyline.telemetry import Event, decode_event
from esper.nissa.reading.lines import read_lines
from esper.nissa.reading.run_lookup import manifest_of
from esper.nissa.reading.tailing import LineFilter, follow_file
from esper.nissa.sinks.contract import Sink, SinkRequest
from esper.nissa.sinks.registry import SinkSpec, opener_of
from esper.nissa.storage.files import FileSystem, read_limited, write_atomically
from esper.nissa.storage.run_directory import SINKS_DIRECTORY, require_own_directories

__all__ = ["Delivery", "open_delivery", "rewind_positions"]

BATCH_EVENTS: Final = 2000
STORE_S: Final = 1.0
"""Least time between two stores of the position; a killed sink gets what came after it again."""
MAX_POSITION_BYTES: Final = 1000


class _Position(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    next_seq: int
    """The sink has got every event before this one."""


@dataclass(eq=False, kw_only=True, slots=True)
class Delivery:
    """Delivers the events of a log to an open sink."""

    log: Path
    sink: Sink
    next_seq: int
    """The first event that has not been delivered."""
    position_path: Path
    pause: Callable[[float], object] | None = None
    """Waits for the log to grow; returns True once it will not grow any more. None if it does not
    grow."""
    note: Callable[[int], object] | None = None
    """Called with the next seq after each batch."""
    num_delivered: int = 0
    _batch: list[Event] = field(default_factory=list)
    _stored_s: float = 0.0

    def run(self) -> None:
        """Deliver to the end of the log, then close the sink."""
        wanted = LineFilter(since=self.next_seq)
        lines = follow_file(self.log, is_following=self.pause is not None, wait=self._wait)
        for line in filter(wanted.accepts, lines):
            try:
                self._batch.append(decode_event(line))
            except EventDecodeError:
                continue  # `validate` reports damage
            if len(self._batch) >= BATCH_EVENTS:
                self._deliver()
        self._deliver()
        self.sink.close()
        self.store()

    def _wait(self, seconds: float) -> bool:
        """Deliver what was read, then wait; return whether the log is complete."""
        self._deliver()
        return self.pause is None or bool(self.pause(seconds))

    def _deliver(self) -> None:
        if not self._batch:
            return
        self.sink.write(self._batch)
        self.next_seq = self._batch[-1].seq + 1
        self.num_delivered += len(self._batch)
        self._batch = []
        if time.monotonic() - self._stored_s > STORE_S:
            self.store()
        if self.note is not None:
            self.note(self.next_seq)

    def store(self) -> None:
        """Store the position."""
        data = msgspec.json.encode(_Position(next_seq=self.next_seq))
        write_atomically(FileSystem(), self.position_path, data)
        self._stored_s = time.monotonic()


def open_delivery(log: Path, spec: SinkSpec, *, is_continued: bool) -> Delivery:
    """Open a sink for a log, at its position if it is continued and at the first event if not."""
    run_dir = log.parent
    require_own_directories(run_dir)
    position_path = run_dir / SINKS_DIRECTORY / f"{spec.label}.json"
    is_continued = is_continued and position_path.exists()
    next_seq = _read_position(position_path) if is_continued else 0
    request = SinkRequest(
        run_dir=run_dir,
        target=spec.target,
        manifest=manifest_of(run_dir),
        started=_first_event(log) if next_seq else None,
        is_continued=is_continued,
    )
    sink = opener_of(spec)(request)
    position_path.parent.mkdir(exist_ok=True)
    delivery = Delivery(log=log, sink=sink, next_seq=next_seq, position_path=position_path)
    # Before the first event: a sink that is killed from here on is continued.
    delivery.store()
    return delivery


def _read_position(path: Path) -> int:
    try:
        data = read_limited(path, MAX_POSITION_BYTES, "position of a sink")
        return msgspec.json.decode(data, type=_Position).next_seq
    except (UnreadableFileError, msgspec.DecodeError):
        return 0  # everything is delivered again


def _first_event(log: Path) -> TrainingStarted | None:
    for line in islice(read_lines(log), 1):
        data = decode_event(line).data
        return data if isinstance(data, TrainingStarted) else None
    return None


def rewind_positions(run_dir: Path, next_seq: int) -> None:
    """Take sinks back to the end of a log that a resumed run has cut: what follows is new."""
    for path in (run_dir / SINKS_DIRECTORY).glob("*.json"):
        if _read_position(path) > next_seq:
            write_atomically(FileSystem(), path, msgspec.json.encode(_Position(next_seq=next_seq)))
