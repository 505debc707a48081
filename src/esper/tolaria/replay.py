"""Replaces a lost worker by one that is brought to the same state by the same commands.

Everything a worker computes is a function of its specification and the commands of the current
round. A port therefore keeps the round's commands with a digest of every reply that was accepted.
When its worker is lost, a new one gets the same commands again. Its replies are compared with the
digests: if they are equal, the run continues as if nothing had happened; if one differs, the
machine or our determinism is broken, and the run ends.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from esper.leyline.engine_payloads import WorkerRestarted
from esper.leyline.errors import RunFailedError, WorkerLostError
from esper.leyline.messages import EnvFailure, Phase
from esper.leyline.workers import Apply, Build, Command, Quarantine, Reply, Train, reply_digest
from esper.tolaria.engine import Connection, Port
from esper.tolaria.lanes import Lane

__all__ = ["ReplayingPort", "start_ports"]

MAX_LOSSES: Final = 2
"""Losses at one command that was never answered before its env is quarantined."""
MAX_REPLAY_LOSSES: Final = 5
"""Losses at one command that was answered before: it worked once, so its envs are not blamed."""


@dataclass(eq=False, slots=True)
class _Entry:
    """A command of the current round and its reply."""

    command: Command
    future: "Future[Reply]" = field(default_factory=Future)
    digest: bytes | None = None
    """Of the reply that was accepted; None while there is none."""
    num_losses: int = 0
    """Workers that were lost while they carried the command out, since one came further."""

    def accept(self, reply: Reply) -> None:
        """Pass the first reply on; raise if a later one differs from it."""
        digest = reply_digest(reply)
        if self.digest is None:
            self.digest = digest
            self.future.set_result(reply)
        elif digest != self.digest:
            name = type(self.command).__name__.lower()
            raise RunFailedError(
                f"a restarted worker replied to '{name}' with other results than before; the "
                "machine computes unreliably or this is a bug: the last checkpoint is intact"
            )


class ReplayingPort:
    """A port whose worker is replaced when it is lost."""

    def __init__(self, start: Callable[[], Connection], *, index: int) -> None:
        """Start the first worker.

        Args:
            start: starts a worker and waits until it is ready.
            index: of the worker, for reports.
        """
        self._start = start
        self._index = index
        self._report: Callable[[WorkerRestarted], object] = _log_restart
        self._port = start()
        self._log: list[_Entry] = []
        # Protects the log, the current port and whether it is being replaced. Reentrant, as a port
        # that is already lost fails a command before `submit` returns.
        self._lock = threading.RLock()
        self._is_rebuilding = False
        self._is_closed = False
        self._num_failed_starts = 0

    @property
    def env_ids(self) -> tuple[int, ...]:
        """Return the envs that the worker owns."""
        return self._port.env_ids

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return nothing: a worker that can be replaced has no threads in this process."""
        return ()

    def env_ids_of(self, lane: Lane) -> tuple[int, ...]:
        """Return nothing: the worker's lanes are not threads of this process."""
        return ()

    def report_restarts_to(self, report: Callable[[WorkerRestarted], object]) -> None:
        """Call `report` with the event about each restart, on any thread, instead of logging it."""
        self._report = report

    def submit(self, command: Command) -> "Future[Reply]":
        """Queue a command; replies become available in the order of submission."""
        entry = _Entry(command)
        with self._lock:
            if isinstance(command, Build):
                # A new round starts from nothing: the commands before it are never needed again.
                assert all(known.digest is not None for known in self._log), "a reply is missing"
                self._log.clear()
            # While a worker is being replaced, commands only join the log; the thread that replays
            # it sends them when it comes to them, so their order is kept.
            self._log.append(entry)
            if not self._is_rebuilding:
                self._hand_over(entry)
        return entry.future

    def end_if_silent(self, deadline_s: float) -> None:
        """End the worker if it hangs; it is replaced like any that is lost."""
        self._port.end_if_silent(deadline_s)

    def close(self) -> None:
        """End the worker."""
        with self._lock:
            self._is_closed = True
            port = self._port
        port.close()

    def _hand_over(self, entry: _Entry) -> None:
        answer = self._port.submit(entry.command)
        # The port is bound here, as answers of the worker before may arrive after its replacement.
        answer.add_done_callback(partial(self._on_answer, entry, self._port))

    def _on_answer(self, entry: _Entry, port: Connection, answer: "Future[Reply]") -> None:
        error = answer.exception()
        if error is None:
            entry.accept(answer.result())
        elif isinstance(error, WorkerLostError):
            self._on_loss(port, error)
        else:
            entry.future.set_exception(error)

    def _on_loss(self, port: Connection, error: WorkerLostError) -> None:
        # Every pending command of a lost worker fails; the first failure starts the replacement.
        with self._lock:
            if self._is_closed or self._is_rebuilding or port is not self._port:
                return
            self._is_rebuilding = True
        name = f"worker-{self._index} replay"
        threading.Thread(target=self._rebuild, args=(error,), name=name, daemon=True).start()

    def _rebuild(self, error: WorkerLostError) -> None:
        """Start workers until one has caught up with the round."""
        lost, began_s = error, time.monotonic()
        # Workers answer in order, so the first command without an answer is the one that was being
        # carried out.
        entry = next((known for known in self._log if known.digest is None), None)
        try:
            while True:
                self._note_loss(entry, lost)
                # Reaps the process; a worker that hangs or was cut off may still be there.
                self._port.close()
                try:
                    entry = None
                    self._port = self._start()
                    num_replayed = 0
                    while (entry := self._next_after(entry)) is not None:
                        # Commands that were never answered are carried out here for the first time,
                        # and are no replay.
                        num_replayed += entry.digest is not None
                        self._carry_out(entry)
                except WorkerLostError as again:
                    lost = again
                    continue
                self._report(self._restart(lost, num_replayed, time.monotonic() - began_s))
                return
        except BaseException as failure:
            self._fail(failure)

    def _note_loss(self, entry: _Entry | None, lost: WorkerLostError) -> None:
        """Count a loss at the command that was carried out; None while the worker was starting.

        A command that was never answered is suspected to be the cause: its env is quarantined. One
        that was answered before is not, and neither is the start of a worker.
        """
        if entry is None:
            self._num_failed_starts += 1
            is_hopeless = self._num_failed_starts >= MAX_REPLAY_LOSSES
        else:
            entry.num_losses += 1
            is_hopeless = entry.digest is not None and entry.num_losses >= MAX_REPLAY_LOSSES
            if entry.digest is None and entry.num_losses >= MAX_LOSSES:
                self._quarantine(entry, lost)
        if is_hopeless:
            raise RunFailedError(
                f"{lost}; {MAX_REPLAY_LOSSES} workers in a row were lost before they had caught up "
                "with the round: the last checkpoint is intact"
            )

    def _quarantine(self, entry: _Entry, lost: WorkerLostError) -> None:
        """Make the next worker drop the env at which two were lost, before the same command."""
        entry.num_losses = 0
        # The heartbeats name the env that was entered last; without them, all envs of the worker
        # are suspects.
        blamed = lost.env_ids or self.env_ids
        failures = tuple(_failure(env_id, entry.command, lost) for env_id in blamed)
        with self._lock:
            # Into the log, not only to the next worker: a later replacement has to drop the env at
            # the same place, or its replies would differ.
            self._log.insert(self._log.index(entry), _Entry(Quarantine(failures=failures)))

    def _next_after(self, entry: _Entry | None) -> _Entry | None:
        """Return the next command to send to a new worker; None when it has caught up."""
        with self._lock:
            place = 0 if entry is None else self._log.index(entry) + 1
            if place < len(self._log):
                return self._log[place]
            # Decided under the lock that `submit` takes: a command is either in the log before
            # this, and is sent by this thread, or sent by its caller afterwards.
            self._is_rebuilding = False
            self._num_failed_starts = 0
            self._forget_losses()
            return None

    def _forget_losses(self) -> None:
        """Start counting again: a worker has come further than all before it."""
        for known in self._log:
            known.num_losses = 0

    def _carry_out(self, entry: _Entry) -> None:
        try:
            reply = self._port.submit(entry.command).result()
        except WorkerLostError:
            raise
        except Exception as error:
            # A stop was requested, or the command failed as it would have without the loss.
            entry.future.set_exception(error)
            raise
        if entry.digest is None:
            with self._lock:
                self._forget_losses()
        entry.accept(reply)

    def _fail(self, failure: BaseException) -> None:
        with self._lock:
            self._is_closed = True
            # Callers wait for these futures with cancellation shielded, so none may stay open.
            pending = [entry for entry in self._log if not entry.future.done()]
        for entry in pending:
            entry.future.set_exception(failure)

    def _restart(self, lost: WorkerLostError, num_replayed: int, seconds: float) -> WorkerRestarted:
        return WorkerRestarted(
            worker=self._index,
            reason=lost.reason,
            env_ids=self.env_ids,
            num_commands_replayed=num_replayed,
            duration_s=seconds,
            stack=lost.stacks,
        )


def start_ports(starts: Sequence[Callable[[], Connection]]) -> list[Port]:
    """Start all workers of a run at once; if one cannot be started, end the others."""
    # Starting is mostly waiting for another process to import and to load its data.
    with ThreadPoolExecutor(len(starts), "worker start") as pool:
        calls = [
            pool.submit(ReplayingPort, start, index=index) for index, start in enumerate(starts)
        ]
    broken = [call for call in calls if call.exception() is not None]
    if broken:
        for call in calls:
            if call not in broken:
                call.result().close()
        broken[0].result()
    return [call.result() for call in calls]


def _log_restart(restarted: WorkerRestarted) -> None:
    logging.getLogger(__name__).warning(
        "worker %d %s and was replaced within %.1f s",
        restarted.worker,
        restarted.reason,
        restarted.duration_s,
    )


def _failure(env_id: int, command: Command, lost: WorkerLostError) -> EnvFailure:
    match command:
        case Build():
            phase, step = Phase.BUILD, None
        case Train(step=number):
            phase, step = Phase.TRAIN, number
        case Apply(decision=decision):
            phase, step = Phase.APPLY, decision.step
        case _:
            phase, step = Phase.VALIDATE, getattr(command, "step", None)
    return EnvFailure(
        env_id=env_id,
        phase=phase,
        step=step,
        error_type=type(lost).__name__,
        message=f"{MAX_LOSSES} workers were lost while they worked on it; the last {lost.reason}",
    )
