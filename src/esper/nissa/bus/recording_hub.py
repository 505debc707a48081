"""An in-memory test double of the hub that records emitted events."""

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from esper.leyline.config import TelemetryConfig
from esper.leyline.errors import TelemetryLostError
from esper.leyline.payloads import Payload
from esper.leyline.telemetry import (
    EVENT_SPECS,
    RUN_SCOPE,
    Channel,
    Draft,
    Event,
    EventScope,
    EventType,
    Severity,
    TelemetryLevel,
    build_event,
    decode_event,
    encode_event,
    event_type_of,
)
from esper.nissa.bus.hub import use_hub
from esper.nissa.bus.levels import LevelGate

__all__ = ["RecordingHub"]


class RecordingHub:
    """A hub without files; `events` contains what a reader of the log would decode."""

    def __init__(
        self,
        *,
        config: TelemetryConfig | None = None,
        run_id: str = "00000000",
        group: str = "test",
    ) -> None:
        self.run_id = run_id
        self._group = group
        self._gate = LevelGate(config or TelemetryConfig())
        self._lock = threading.Lock()
        self._by_channel: dict[Channel, list[Event]] = {channel: [] for channel in Channel}
        self._use = use_hub(self)
        self.failure: TelemetryLostError | None = None
        """Set this to simulate a log that cannot be written."""
        self.num_flushes = 0

    @property
    def events(self) -> list[Event]:
        """Return the run's events so far."""
        return list(self._by_channel[Channel.RUN])

    @property
    def next_seq(self) -> int:
        """Return the seq of the next event of the run."""
        return len(self._by_channel[Channel.RUN])

    @property
    def operational(self) -> list[Event]:
        """Return the operational events so far."""
        return list(self._by_channel[Channel.OPERATIONAL])

    def of_type(self, event_type: EventType) -> list[Event]:
        """Return the events of one type."""
        channel = EVENT_SPECS[event_type].channel
        return [event for event in self._by_channel[channel] if event.event_type is event_type]

    def wants(self, event_type: EventType) -> bool:
        """Check whether the level in force lets events of this type through."""
        return self._gate.wants(event_type)

    def escalate_to(self, level: TelemetryLevel | None) -> None:
        """Raise the verbosity temporarily; None restores the configured level."""
        self._gate.escalate_to(level)

    def emit(
        self, payload: Payload, scope: EventScope = RUN_SCOPE, severity: Severity | None = None
    ) -> int | None:
        """Record an event; return its seq, or None if the level in force filters its type out."""
        if type(payload) not in self._gate.wanted:
            return None
        return self._record(Draft(payload, scope, severity))

    def publish(self, drafts: Iterable[Draft]) -> None:
        """Record several events in order."""
        for draft in drafts:
            if type(draft.payload) in self._gate.wanted:
                self._record(draft)

    def _record(self, draft: Draft) -> int:
        events = self._by_channel[EVENT_SPECS[event_type_of(draft.payload)].channel]
        with self._lock:
            seq = len(events)
            # The seq serves as timestamp, so that two recordings of the same events are equal.
            event = build_event(
                draft, seq=seq, ts=float(seq), run_id=self.run_id, group=self._group
            )
            # Encode and decode, so that a payload that cannot be serialised fails here.
            events.append(decode_event(encode_event(event)))
        return seq

    async def room(self) -> None:
        """Return at once; raise the failure, if one was set."""
        self._raise_failure()

    def flush(self, timeout_s: float | None = None) -> None:
        """Count the flush; raise the failure, if one was set."""
        self.num_flushes += 1
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> Self:
        self._use.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._use.__exit__(kind, error, traceback)
