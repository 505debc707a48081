"""The hub: the single exit point for a run's events.

`emit` does not raise when the log cannot be written: the hub stores the failure, counts the lost
events, and raises the failure from `room`, `flush` and `close`. Only the callers of those see a
disk failure; producers need not handle it.
"""

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import anyio
import anyio.to_thread
import msgspec

from esper.leyline.config import FsyncPolicy, TelemetryConfig
from esper.leyline.errors import ContractError, TelemetryLostError
from esper.leyline.payloads import Payload, SubscriberLagged
from esper.leyline.telemetry import (
    RUN_SCOPE,
    Channel,
    Draft,
    EventScope,
    EventType,
    Severity,
    TelemetryLevel,
)
from esper.nissa.bus.feed import LiveFeed
from esper.nissa.bus.inbox import Inbox
from esper.nissa.bus.levels import LevelGate
from esper.nissa.bus.subscribers import LiveSource
from esper.nissa.bus.writer import Writer
from esper.nissa.storage.files import FileSystem
from esper.nissa.storage.journal import (
    EVENTS_FILE,
    OPERATIONAL_FILE,
    Journal,
    LogClaim,
    open_journal,
)

__all__ = ["Hub", "HubStatistics", "SinkStatistics", "TelemetryHub", "get_hub", "use_hub"]

INBOX_BYTES: Final = 16 * 1024 * 1024
CLOSE_DEADLINE_S: Final = 10.0


class SinkStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one receiver of events: a log file or a live subscriber."""

    written: int
    dropped: int
    bytes: int
    lag: int
    """Events it has not received yet."""


class HubStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a hub and its receivers."""

    emitted: int
    """Events accepted in this process, on both channels."""
    sinks: dict[str, SinkStatistics]
    """The two logs by file name, the live subscribers by subscriber name."""


class Hub(Protocol):
    """The producer's interface of a hub; `bus.recording_hub.RecordingHub` also implements it."""

    @property
    def failure(self) -> TelemetryLostError | None:
        """The error with which writing the log failed, or None."""

    @property
    def next_seq(self) -> int:
        """Return the seq of the next event of the run."""

    def wants(self, event_type: EventType) -> bool:
        """Check whether the level in force lets events of this type through."""

    def escalate_to(self, level: TelemetryLevel | None) -> None:
        """Raise the verbosity temporarily; None restores the configured level."""

    def emit(
        self, payload: Payload, scope: EventScope = RUN_SCOPE, severity: Severity | None = None
    ) -> int | None:
        """Emit an event; return its seq, or None if the level in force filters its type out."""

    def publish(self, drafts: Iterable[Draft]) -> None:
        """Emit several events in order."""

    async def room(self) -> None:
        """Wait, without blocking the event loop, for queue space; raise a stored failure."""

    def flush(self, timeout_s: float | None = None) -> None:
        """Block until everything emitted so far is on disk."""


class TelemetryHub:
    """The hub of one run: numbers events, writes its two logs, feeds its live subscribers.

    Used as a context manager, it is the current hub inside the block and is closed at its end.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        run_id: str,
        group: str = "default",
        config: TelemetryConfig | None = None,
        fsync: FsyncPolicy = FsyncPolicy.ROUND,
        fsync_interval_s: float = 0.1,
        max_queued_bytes: int = INBOX_BYTES,
        files: FileSystem | None = None,
        claim: LogClaim | None = None,
    ) -> None:
        """Open the logs of a run.

        Args:
            run_dir: the directory of the run.
            run_id: its id, which every event has.
            group: its group, which every event has.
            config: which events are written.
            fsync: when the logs are flushed to disk.
            fsync_interval_s: how often, with fsync policy `interval`.
            max_queued_bytes: the bound at which producers wait for the writer.
            files: the file operations.
            claim: the lock on the log, if the caller holds it; the hub takes it over.
        """
        self.run_dir = run_dir
        self.run_id = run_id
        self._gate = LevelGate(config or TelemetryConfig())
        # Opened before any thread starts: what is wrong with the files is the caller's error, not a
        # loss.
        journals = _open_journals(run_dir, files or FileSystem(), claim)
        self._journals = journals
        # A resumed run continues its log; statistics count what this process has written.
        self._first_seqs = {channel: journal.next_seq for channel, journal in journals.items()}
        self._inbox = Inbox(max_bytes=max_queued_bytes, next_seqs=self._first_seqs)
        log = journals[Channel.RUN]
        feed = LiveFeed(next_seq=log.next_seq)
        self.live = LiveSource(run_id=run_id, log=log, feed=feed, note_lag=self._note_lag)
        """The source that live subscribers read from."""
        self._writer = Writer(
            inbox=self._inbox,
            journals=journals,
            feed=feed,
            run_id=run_id,
            group=group,
            fsync=fsync,
            fsync_interval_s=fsync_interval_s,
        )
        self._writer.start()
        self._token: Token[Hub] | None = None

    @property
    def level(self) -> TelemetryLevel:
        """Return the level in force."""
        return self._gate.level

    @property
    def failure(self) -> TelemetryLostError | None:
        """Return the error with which writing the log failed, or None."""
        return self._writer.failure

    @property
    def next_seq(self) -> int:
        """Return the seq of the next event of the run."""
        return self._inbox.next_seq(Channel.RUN)

    @property
    def statistics(self) -> HubStatistics:
        """Return a snapshot of the counts."""
        sinks = {
            journal.path.name: self._journal_statistics(channel, journal)
            for channel, journal in self._journals.items()
        }
        for subscriber in self.live.subscribers:
            sinks[subscriber.name] = SinkStatistics(
                written=subscriber.num_delivered,
                dropped=subscriber.num_dropped,
                bytes=subscriber.num_bytes,
                lag=subscriber.lag,
            )
        return HubStatistics(emitted=self._inbox.num_accepted, sinks=sinks)

    def _journal_statistics(self, channel: Channel, journal: Journal) -> SinkStatistics:
        written = journal.next_seq - self._first_seqs[channel]
        missing = self._inbox.next_seq(channel) - journal.next_seq
        is_lost = self.failure is not None
        return SinkStatistics(
            written=written,
            dropped=missing if is_lost else 0,
            bytes=journal.num_bytes,
            lag=0 if is_lost else missing,
        )

    def wants(self, event_type: EventType) -> bool:
        """Check whether the level in force lets events of this type through."""
        return self._gate.wants(event_type)

    def escalate_to(self, level: TelemetryLevel | None) -> None:
        """Raise the verbosity temporarily; None restores the configured level."""
        self._gate.escalate_to(level)

    def emit(
        self, payload: Payload, scope: EventScope = RUN_SCOPE, severity: Severity | None = None
    ) -> int | None:
        """Emit an event; return its seq, or None if the level in force filters its type out.

        Thread-safe. Does not wait while the inbox is below its bound. At the bound, a worker
        thread blocks until the writer has caught up; a thread that runs an event loop never blocks.
        """
        # A set of types, looked up without a lock: most events of a quiet level end here.
        if type(payload) not in self._gate.wanted:
            return None
        return self._inbox.put(Draft(payload, scope, severity))

    def publish(self, drafts: Iterable[Draft]) -> None:
        """Emit several events in order."""
        wanted = self._gate.wanted
        for draft in drafts:
            if type(draft.payload) in wanted:
                self._inbox.put(draft)

    async def room(self) -> None:
        """Wait, without blocking the event loop, for queue space; raise a stored failure."""
        if not self._inbox.has_room:
            # The thread may be left waiting when the task is cancelled: the writer will release it.
            await anyio.to_thread.run_sync(self._inbox.wait_for_room, abandon_on_cancel=True)
        self._raise_failure()

    def flush(self, timeout_s: float | None = None) -> None:
        """Block until everything emitted so far is on disk; with fsync policy `never`, written."""
        is_synced = self._inbox.wait_synced(timeout_s)
        self._raise_failure()
        if not is_synced:
            raise self._late(f"not on disk within {timeout_s} s")

    def close(self, deadline_s: float = CLOSE_DEADLINE_S) -> HubStatistics:
        """Write every accepted event, then stop; raise if any of them could not be written.

        Closing again is allowed and has the same outcome.
        """
        self._inbox.close()
        has_ended = self._writer.join(deadline_s)
        self._raise_failure()
        if not has_ended:
            raise self._late(f"{self._inbox.num_waiting} events not written within {deadline_s} s")
        return self.statistics

    def _late(self, reason: str) -> TelemetryLostError:
        log = self._journals[Channel.RUN]
        return TelemetryLostError(log.path, None, reason, log.last_seq)

    def _raise_failure(self) -> None:
        if self._writer.failure is not None:
            raise self._writer.failure

    def _note_lag(self, lagged: SubscriberLagged) -> None:
        # Subscribers may still be reading after the hub is closed; a closed hub takes no events.
        with contextlib.suppress(ContractError):
            self.emit(lagged)

    def __enter__(self) -> Self:
        self._token = _current_hub.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._token is not None
        _current_hub.reset(self._token)
        self.close()


def _open_journals(
    run_dir: Path, files: FileSystem, claim: LogClaim | None
) -> dict[Channel, Journal]:
    events = open_journal(run_dir / EVENTS_FILE, files=files, has_checksums=True, claim=claim)
    try:
        operational = open_journal(run_dir / OPERATIONAL_FILE, files=files, has_checksums=False)
    except BaseException:
        # Also releases the lock on the log, so that another attempt can open it.
        events.close()
        raise
    return {Channel.RUN: events, Channel.OPERATIONAL: operational}


_current_hub: ContextVar[Hub] = ContextVar("esper_hub")


def get_hub() -> Hub:
    """Return the current hub of this thread or task."""
    try:
        return _current_hub.get()
    except LookupError:
        raise ContractError(
            "no hub is open here; enter 'with hub:' or 'with use_hub(hub):' first, "
            "in each thread that emits"
        ) from None


@contextlib.contextmanager
def use_hub(hub: Hub) -> Iterator[Hub]:
    """Make a hub the current one inside the block, without closing it at the end."""
    token = _current_hub.set(hub)
    try:
        yield hub
    finally:
        _current_hub.reset(token)
