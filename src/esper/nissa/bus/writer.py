"""The writer: the thread that encodes drafts, commits them to the logs and feeds subscribers.

Producers do not wake it: it polls the inbox every few milliseconds, so that `put` stays a plain
append and each poll becomes a group commit. A flush, a close or a full inbox wakes it at once.
"""

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from esper.leyline.config import FsyncPolicy
from esper.leyline.errors import TelemetryLostError
from esper.leyline.telemetry import Channel, build_event, encode_event
from esper.nissa.bus.feed import LiveFeed
from esper.nissa.bus.inbox import Entry, Inbox
from esper.nissa.storage.block_facts import count_facts
from esper.nissa.storage.blocks import Block, BlockFacts
from esper.nissa.storage.journal import Journal

__all__ = ["Writer"]

LOOK_EVERY_S: Final = 0.005
# Bounds the blocks after a pause of the disk, and with them what one damaged block can lose.
MAX_BLOCK_EVENTS: Final = 512


class Writer:
    """Owns the journals from `start` until its thread has ended."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        journals: Mapping[Channel, Journal],
        feed: LiveFeed,
        run_id: str,
        group: str,
        fsync: FsyncPolicy,
        fsync_interval_s: float,
    ) -> None:
        self._inbox = inbox
        self._journals = journals
        self._feed = feed
        self._run_id = run_id
        self._group = group
        self._fsync = fsync
        self._fsync_interval_s = fsync_interval_s
        self._next_sync_s = time.monotonic() + fsync_interval_s
        # A daemon thread, so that a hanging disk does not prevent the process from exiting.
        self._thread = threading.Thread(target=self._run, name="esper-writer", daemon=True)
        self.failure: TelemetryLostError | None = None
        """The error that stopped the thread, or None."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; return False on timeout."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                # The log closes last: whoever can lock it may change every file of the run.
                for journal in self._journals.values():
                    stack.callback(_close, journal)
                self._write_until_drained()
        # On any error: store it for the hub to raise, and release producers that wait for space.
        except Exception as error:
            self.failure = self._as_lost(error)
            # After the failure is stored: a producer that is released here finds it.
            self._inbox.fail()
        finally:
            # Always last, and on every path: subscribers would otherwise wait for ever.
            self._feed.close(is_complete=self.failure is None)

    def _as_lost(self, error: Exception) -> TelemetryLostError:
        if isinstance(error, TelemetryLostError):
            return error
        log = self._journals[Channel.RUN]
        return TelemetryLostError(log.path, None, f"the writer stopped: {error!r}", log.last_seq)

    def _write_until_drained(self) -> None:
        while True:
            # Read before take(): once closed and empty, no further entry can arrive.
            is_last = self._inbox.is_drained
            taken, is_sync_asked = self._inbox.take()
            for channel, entries in taken.items():
                for start in range(0, len(entries), MAX_BLOCK_EVENTS):
                    self._commit(channel, entries[start : start + MAX_BLOCK_EVENTS])
            if is_sync_asked or is_last or self._is_sync_due():
                self._sync()
            if is_last:
                return
            self._inbox.wakeup.wait(LOOK_EVERY_S)

    def _is_sync_due(self) -> bool:
        return self._fsync is FsyncPolicy.INTERVAL and time.monotonic() >= self._next_sync_s

    def _commit(self, channel: Channel, entries: Sequence[Entry]) -> None:
        """Write one block, then release its share of the inbox bound."""
        self._append(self._journals[channel], entries, is_live=channel is Channel.RUN)
        self._inbox.release(len(entries), sum(entry.counted_bytes for entry in entries))

    def _append(self, journal: Journal, entries: Sequence[Entry], *, is_live: bool) -> None:
        lines: list[bytes] = []
        broken: Exception | None = None
        for entry in entries:
            try:
                lines.append(self._encode(entry))
            # If a payload cannot be encoded as JSON, the events before it are still written.
            except Exception as error:
                broken = error
                break
        if lines:
            block = Block(entries[0].seq, len(lines), b"\n".join(lines) + b"\n")
            # Log first, then feed: a subscriber never sees an event that is not in the log.
            self._write(journal, block, _facts(entries[: len(lines)]))
            if is_live:
                self._feed.publish(block)
        if broken is not None:
            reason = f"event {entries[len(lines)].seq} cannot be encoded: {broken!r}"
            raise TelemetryLostError(journal.path, None, reason, journal.last_seq) from broken

    def _encode(self, entry: Entry) -> bytes:
        event = build_event(
            entry.draft, seq=entry.seq, ts=entry.ts, run_id=self._run_id, group=self._group
        )
        line = encode_event(event)
        entry.route.note_size(len(line) + 1)
        return line

    def _write(self, journal: Journal, block: Block, facts: BlockFacts) -> None:
        try:
            journal.append(block, facts)
        except OSError as error:
            raise _lost(journal, error) from error

    def _sync(self) -> None:
        """Call fsync on the logs, unless the policy is `never`, and report them as synced."""
        for journal in self._journals.values():
            journal.check_untouched()  # the next append, which would notice, may be far away
            if self._fsync is FsyncPolicy.NEVER:
                continue
            try:
                journal.sync()
            except OSError as error:
                raise _lost(journal, error) from error
        self._next_sync_s = time.monotonic() + self._fsync_interval_s
        self._inbox.note_synced()


def _facts(entries: Sequence[Entry]) -> BlockFacts:
    """Count what is in a block: from the drafts, as parsing the lines would take three times."""
    return count_facts(
        [entry.route.event_type for entry in entries],
        [entry.draft.scope.env_id for entry in entries],
        [
            entry.route.severity if entry.draft.severity is None else entry.draft.severity.value
            for entry in entries
        ],
    )


def _close(journal: Journal) -> None:
    try:
        journal.close()
    except OSError as error:
        raise _lost(journal, error) from error


def _lost(journal: Journal, error: OSError) -> TelemetryLostError:
    reason = error.strerror or str(error)
    return TelemetryLostError(journal.path, error.errno, reason, journal.last_seq)
