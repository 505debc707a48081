"""A port to a worker in a process of its own."""

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Final

from esper.leyline.engine_payloads import WorkerRestarted
from esper.leyline.errors import UnreadableMessageError, WorkerLostError
from esper.leyline.workers import (
    Answer,
    Command,
    DriverMessage,
    Reply,
    Request,
    Stacks,
    StacksRequest,
    Stop,
    WorkerIdentity,
    WorkerMessage,
    WorkerReady,
    WorkerRefused,
    WorkerSpec,
    decode_from_worker,
    encode,
    entered_envs,
)
from esper.tolaria.fork_server import ForkServer
from esper.tolaria.lanes import Lane
from esper.tolaria.pulse import Pulse
from esper.tolaria.replies import formatted_stacks, refusal_of, settle
from esper.tolaria.stopping import StopFlag
from esper.tolaria.wire import Wire

__all__ = ["ProcessPort"]

POLL_S: Final = 0.05
STACKS_TIMEOUT_S: Final = 1.0
"""How long a hung worker may take to report its stacks: none if it holds the interpreter lock."""


class ProcessPort:
    """Starts a worker process and exchanges messages with it."""

    def __init__(self, spec: WorkerSpec, server: ForkServer, stop: StopFlag) -> None:
        """Fork the worker and send it its specification, without waiting for it.

        Args:
            spec: what the worker is built from.
            server: forks the process.
            stop: passed on to the worker.
        """
        self.env_ids = spec.env_ids
        self.lanes: tuple[Lane, ...] = ()
        self._index = spec.index
        self._stop = stop
        self._has_passed_stop = False
        self._server = server
        self._pulse, pulse_descriptor = Pulse.create(max(1, spec.lanes))
        # An anonymous pair has no address that another user of the machine could connect to.
        ours, theirs = socket.socketpair()
        with theirs:
            self.pid = server.fork([theirs.fileno(), pulse_descriptor])
        os.close(pulse_descriptor)
        self._wire = Wire(ours)
        self._lock = threading.Lock()
        self._pending: deque[Future[Reply]] = deque()
        self._num_sent = 0
        self._num_answered = 0
        self._num_answered_before = 0
        """As of the last check for silence."""
        self._idle_since_s = time.monotonic()
        self._started: Future[WorkerReady] = Future()
        self._stacks: Future[Stacks] = Future()
        self._lost: WorkerLostError | None = None
        self._is_ending = False
        """Whether the end of the process is this side's doing."""
        self._reader = threading.Thread(
            target=self._read, name=f"worker-{spec.index} replies", daemon=True
        )
        self._send(spec)
        self._reader.start()

    def ready(self) -> WorkerIdentity:
        """Wait until the worker is built; return what it says of itself."""
        while True:
            self._stop.checkpoint()
            with suppress(TimeoutError):
                return self._started.result(POLL_S).identity

    def env_ids_of(self, lane: Lane) -> tuple[int, ...]:
        """Return nothing: the worker's lanes are not threads of this process."""
        return ()

    def report_restarts_to(self, report: Callable[[WorkerRestarted], object]) -> None:
        """Do nothing: this port loses its worker for good; `ReplayingPort` replaces it."""

    def submit(self, command: Command) -> "Future[Reply]":
        """Send a command; replies arrive in the order of submission."""
        future: Future[Reply] = Future()
        with self._lock:
            if self._lost is not None:
                future.set_exception(self._lost)
                return future
            self._pending.append(future)
            request = Request(seq=self._num_sent, command=command)
            self._num_sent += 1
            # Under the lock: the worker takes messages in the order of their numbers, and two
            # threads may submit at once.
            self._send(request)
        return future

    def end_if_silent(self, deadline_s: float) -> None:
        """Pass a requested stop on, and kill the worker if a lane has been silent for too long."""
        if self._stop.is_set() and not self._has_passed_stop:
            self._has_passed_stop = True
            self._send(Stop(reason=self._stop.reason))
        # From shared memory, not by a message: a worker that is stuck in native code answers none.
        silent_s = max(self._ignored_s(), *(beat.silent_s for beat in self._pulse.read()))
        if silent_s > deadline_s and not self._is_ending:
            self._is_ending = True
            reason = f"no heartbeat for {silent_s:.0f} s"
            # On a thread of its own, as the stacks of a hung worker may take a second to arrive.
            threading.Thread(target=self._end_hung, args=(reason,), daemon=True).start()

    def _ignored_s(self) -> float:
        """Return for how long all lanes have been idle although a command is pending.

        A worker that was suspended between two commands never begins the next one.
        """
        now_s, num_answered = time.monotonic(), self._num_sent - len(self._pending)
        is_busy = any(beat.silent_s > 0 for beat in self._pulse.read())
        if is_busy or not self._pending or num_answered != self._num_answered_before:
            self._num_answered_before, self._idle_since_s = num_answered, now_s
        return now_s - self._idle_since_s

    def close(self) -> None:
        """End the worker and wait for its process; it is killed if it does not end by itself."""
        self._is_ending = True
        self._wire.close()
        self._reader.join()

    def _send(self, message: DriverMessage | WorkerSpec) -> None:
        # If the other end is gone, the reader finds out and fails what is pending.
        with suppress(OSError):
            self._wire.send(encode(message))

    def _end_hung(self, reason: str) -> None:
        self._send(StacksRequest())
        stacks: dict[str, str] = {}
        with suppress(TimeoutError):
            stacks = self._stacks.result(STACKS_TIMEOUT_S).stacks
        with self._lock:
            # Set before the kill, so that the reader reports the hang and not the signal that ended
            # it.
            self._lost = self._lost or self._loss(reason, formatted_stacks(stacks))
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        """Receive messages until the connection ends, then fail what is pending."""
        unreadable: str | None = None
        try:
            while (data := self._wire.receive()) is not None:
                self._take(decode_from_worker(data))
        except UnreadableMessageError as error:
            unreadable = f"sent a message that {error}"
            self._wire.close()
        # Only its parent, the fork server, may wait for the process.
        ending = self._server.reap(self.pid)
        with self._lock:
            lost = self._lost = self._lost or self._loss(unreadable or ending, "")
        with suppress(InvalidStateError):
            self._started.set_exception(lost)
        while self._pending:
            self._pending.popleft().set_exception(lost)

    def _take(self, message: WorkerMessage) -> None:
        match message:
            case Answer(seq=seq, reply=reply):
                # A reply to the wrong command would go unnoticed into the results; the worker is
                # replaced instead.
                if seq != self._num_answered or not self._pending:
                    raise UnreadableMessageError(f"answers request {seq}, which is not due")
                self._num_answered += 1
                settle(self._pending.popleft(), reply)
            case WorkerReady() as ready:
                with suppress(InvalidStateError):
                    self._started.set_result(ready)
            case WorkerRefused() as refused:
                with suppress(InvalidStateError):
                    self._started.set_exception(refusal_of(refused))
            case Stacks() as stacks:
                with suppress(InvalidStateError):
                    self._stacks.set_result(stacks)

    def _loss(self, reason: str, stacks: str) -> WorkerLostError:
        env_ids = entered_envs(self._pulse.read())
        return WorkerLostError(self._index, reason, env_ids=env_ids, stacks=stacks)
