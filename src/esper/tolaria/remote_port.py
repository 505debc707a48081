"""What all ports to workers outside this process have in common, however messages travel."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Final

from esper.leyline.errors import (
    InterruptedRunError,
    RunFailedError,
    UnreadableMessageError,
    UsageError,
    WorkerLostError,
)
from esper.leyline.workers import (
    Answer,
    Beat,
    Command,
    Reply,
    Request,
    Stacks,
    StacksRequest,
    Stop,
    WorkerError,
    WorkerIdentity,
    WorkerMessage,
    WorkerReady,
    WorkerRefused,
    WorkerSpec,
    entered_envs,
)
from esper.tolaria.stopping import StopFlag

__all__ = ["RemotePort"]

POLL_S: Final = 0.05
START_TIMEOUT_S: Final = 300.0
"""How long a worker may take to start: it loads data, and may have to wait for a node."""
STACKS_TIMEOUT_S: Final = 1.0
"""How long a hung worker may take to report its stacks: none if it holds the interpreter lock."""


class RemotePort(ABC):
    """Starts, watches and loses a worker; its subclasses carry the messages.

    This port loses its worker for good; `ReplayingPort` replaces it.
    """

    def __init__(self, spec: WorkerSpec, stop: StopFlag) -> None:
        """Prepare for a worker that the subclass starts.

        Args:
            spec: what the worker is built from.
            stop: passed on to the worker.
        """
        self.env_ids = spec.env_ids
        self._index = spec.index
        self._stop = stop
        self._has_passed_stop = False
        # Protects what was sent and not yet answered, and whether the worker is lost. Reentrant, as
        # a message to a worker that is already gone may fail while it is sent.
        self._lock = threading.RLock()
        self._pending: dict[int, Future[Reply]] = {}
        """By number of the request, in order."""
        self._num_sent = 0
        self._started: Future[WorkerMessage] = Future()
        self._stacks: Future[Stacks] = Future()
        self._lost: WorkerLostError | None = None
        self._is_ending = False
        """Whether the end of the worker is this side's doing."""

    def ready(self) -> WorkerIdentity:
        """Wait until the worker is built; return what it says of itself."""
        began_s = time.monotonic()
        while not self._started.done():
            self._stop.checkpoint()
            waited_s = time.monotonic() - began_s
            if waited_s > START_TIMEOUT_S:
                raise self._loss(
                    f"did not start within {START_TIMEOUT_S:.0f} s; see whether its data can be "
                    "read where it runs"
                )
            self._report_wait(waited_s)
            with suppress(Exception):  # raised again below
                self._started.exception(POLL_S)
        match self._started.result():
            case WorkerReady(identity=identity):
                return identity
            case WorkerRefused(message=message, exit_code=code):
                kind = UsageError if code == UsageError.exit_code else RunFailedError
                raise kind(f"worker {self._index}: {message}")
            case other:
                raise self._loss(f"answered its start with {type(other).__name__}")

    def submit(self, command: Command) -> "Future[Reply]":
        """Send a command; the worker carries commands out in the order of submission."""
        future: Future[Reply] = Future()
        with self._lock:
            if self._lost is not None:
                future.set_exception(self._lost)
                return future
            seq, self._num_sent = self._num_sent, self._num_sent + 1
            self._pending[seq] = future
            self._send(Request(seq=seq, command=command))
        return future

    def end_if_silent(self, deadline_s: float) -> None:
        """Pass a requested stop on, and end the worker if a lane has been silent for too long."""
        if self._is_ending or self._lost is not None:
            return
        if self._stop.is_set() and not self._has_passed_stop:
            self._has_passed_stop = True
            self._send(Stop(reason=self._stop.reason))
        silent_s = self._silent_s()
        if silent_s > deadline_s:
            self._is_ending = True
            # On a thread of its own, as the stacks of a hung worker may take a second to arrive.
            threading.Thread(
                target=self._end_hung, args=(f"no heartbeat for {silent_s:.0f} s",), daemon=True
            ).start()

    @abstractmethod
    def close(self) -> None:
        """End the worker."""

    @abstractmethod
    def _send(self, message: Request | Stop | StacksRequest) -> None:
        """Send a message; what the worker answers goes to `_take`."""

    @abstractmethod
    def _silent_s(self) -> float:
        """Return for how long the worker has shown no sign of life."""

    @abstractmethod
    def _beats(self) -> tuple[Beat, ...]:
        """Return the last known signs of life of the worker's lanes."""

    @abstractmethod
    def _end(self) -> None:
        """End a worker that hangs, without waiting for it."""

    @abstractmethod
    def _report_wait(self, waited_s: float) -> None:
        """Log that a worker has not started yet, if that may be for the user to change."""

    def _take(self, message: WorkerMessage) -> None:
        """Give a message of the worker to the one who waits for it."""
        match message:
            case Answer(seq=seq, reply=reply):
                with self._lock:
                    if self._lost is not None:
                        return  # the worker had been given up, and whoever waited was told so
                    if next(iter(self._pending), None) != seq:
                        raise UnreadableMessageError(f"answers request {seq}, which is not due")
                    pending = self._pending.pop(seq)
                if reply.error is None:
                    pending.set_result(reply)
                else:
                    pending.set_exception(_error_of(reply.error))
            case WorkerReady() | WorkerRefused():
                with suppress(InvalidStateError):
                    self._started.set_result(message)
            case Stacks() as stacks:
                with suppress(InvalidStateError):
                    self._stacks.set_result(stacks)

    def _end_hung(self, reason: str) -> None:
        self._send(StacksRequest())
        stacks: Mapping[str, str] = {}
        with suppress(TimeoutError):  # none if it does not answer, which is why it is ended
            stacks = self._stacks.result(STACKS_TIMEOUT_S).stacks
        self._lose(reason, "\n".join(f"{name}:\n{stack}" for name, stack in stacks.items()))
        self._end()

    def _lose(self, reason: str, stacks: str = "") -> None:
        """Fail what is pending and all that follows; the first reason is the one reported."""
        with self._lock:
            lost = self._lost = self._lost or self._loss(reason, stacks)
            pending, self._pending = [*self._pending.values()], {}
        with suppress(InvalidStateError):
            self._started.set_exception(lost)
        for future in pending:
            future.set_exception(lost)

    def _loss(self, reason: str, stacks: str = "") -> WorkerLostError:
        env_ids = entered_envs(self._beats())
        return WorkerLostError(self._index, reason, env_ids=env_ids, stacks=stacks)


def _error_of(error: WorkerError) -> Exception:
    """Return the exception that a worker's error is raised as."""
    if error.is_interruption:
        return InterruptedRunError(error.message)
    return RunFailedError(f"{error.error_type}: {error.message}\n{error.traceback}")
