"""A port to a worker that is a Ray actor: messages are the arguments and results of its methods."""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final

from esper.leyline.engine_payloads import WorkerRestarted
from esper.leyline.errors import RunFailedError, UnreadableMessageError, WorkerLostError
from esper.leyline.workers import (
    Answer,
    Beat,
    Beats,
    BeatsRequest,
    Command,
    DriverMessage,
    Reply,
    Request,
    Stacks,
    StacksRequest,
    Stop,
    WorkerIdentity,
    WorkerReady,
    WorkerRefused,
    WorkerSpec,
    decode_from_worker,
    encode,
    entered_envs,
)
from esper.tolaria.lanes import Lane
from esper.tolaria.ray_cluster import SIDE_GROUP, RayCluster, one_line
from esper.tolaria.replies import formatted_stacks, refusal_of, settle
from esper.tolaria.stopping import StopFlag

__all__ = ["RayPort"]

POLL_S: Final = 0.05
STACKS_TIMEOUT_S: Final = 1.0
PATIENCE_S: Final = 15.0
"""How long a worker may take to start before a message says what it may be waiting for."""
_CAUSE: Final = "The actor is dead because "
_CREATION: Final = ("creation task", "failed to be imported", "failed to import")
"""Parts of Ray's messages about an actor whose class cannot be loaded on its node."""


class RayPort:
    """Starts an actor and exchanges messages with it."""

    def __init__(self, spec: WorkerSpec, cluster: RayCluster, stop: StopFlag) -> None:
        """Start the actor and send it its specification, without waiting for it.

        Args:
            spec: what the worker is built from.
            cluster: where the actor is started.
            stop: passed on to the worker.
        """
        self.env_ids = spec.env_ids
        self.lanes: tuple[Lane, ...] = ()
        self._index = spec.index
        self._cluster = cluster
        self._stop = stop
        self._has_passed_stop = False
        self._lock = threading.Lock()
        self._pending: dict[int, Future[Reply]] = {}
        self._num_sent = 0
        self._lost: WorkerLostError | None = None
        self._is_ending = False
        """Whether the end of the actor is this side's doing."""
        self._beats: tuple[Beat, ...] = ()
        """As of the last answer."""
        self._asked_s: float | None = None
        """When the beats were asked for; None once they have arrived."""
        self.actor = cluster.start_worker(lanes=spec.lanes)
        self._started: Future[bytes] = self.actor.start.remote(encode(spec)).future()
        self.place: Future[tuple[str, int]] = self.actor.place.remote().future()
        """The worker's node and process id."""

    def ready(self) -> WorkerIdentity:
        """Wait until the worker is built; return what it says of itself."""
        patient_until_s = time.monotonic() + PATIENCE_S
        while not self._started.done():
            self._stop.checkpoint()
            if time.monotonic() > patient_until_s:
                patient_until_s = math.inf
                self._cluster.report_waiting(self._index)
            with suppress(Exception):  # raised again below
                self._started.exception(POLL_S)
        error = self._started.exception()
        if error is not None:
            raise self._start_failure(error)
        match decode_from_worker(self._started.result()):
            case WorkerReady(identity=identity):
                return identity
            case WorkerRefused() as refused:
                raise refusal_of(refused)
            case other:
                raise self._loss(f"answered its start with {type(other).__name__}")

    def env_ids_of(self, lane: Lane) -> tuple[int, ...]:
        """Return nothing: the worker's lanes are not threads of this process."""
        return ()

    def report_restarts_to(self, report: Callable[[WorkerRestarted], object]) -> None:
        """Do nothing: this port loses its worker for good; `ReplayingPort` replaces it."""

    def submit(self, command: Command) -> "Future[Reply]":
        """Send a command; the actor carries commands out in the order of submission."""
        future: Future[Reply] = Future()
        with self._lock:
            if self._lost is not None:
                future.set_exception(self._lost)
                return future
            seq, self._num_sent = self._num_sent, self._num_sent + 1
            self._pending[seq] = future
            # Under the lock, since Ray carries calls out in the order in which they are made.
            answer = self.actor.carry_out.remote(encode(Request(seq=seq, command=command)))
        answer.future().add_done_callback(partial(self._on_answer, seq))
        return future

    def end_if_silent(self, deadline_s: float) -> None:
        """Pass a requested stop on, and end the worker if a lane has been silent for too long.

        A node that cannot be reached is silent too: it is given up after our deadline, which is
        usually shorter than Ray's own.
        """
        if self._is_ending or self._lost is not None:
            return
        if self._stop.is_set() and not self._has_passed_stop:
            self._has_passed_stop = True
            self._ask(Stop(reason=self._stop.reason))
        now_s = time.monotonic()
        unanswered_s = 0.0 if self._asked_s is None else now_s - self._asked_s
        if self._asked_s is None:
            self._asked_s = now_s
            self._ask(BeatsRequest()).add_done_callback(self._on_beats)
        silent_s = max([unanswered_s, *(beat.silent_s for beat in self._beats)])
        if silent_s > deadline_s:
            self._is_ending = True
            reason = f"no heartbeat for {silent_s:.0f} s"
            # On a thread of its own, as the stacks of a hung worker may take a second to arrive.
            threading.Thread(
                target=self._end_hung, args=(reason, unanswered_s > deadline_s), daemon=True
            ).start()

    def close(self) -> None:
        """End the actor."""
        self._is_ending = True
        self._cluster.end_worker(self.actor)
        self._lose(self._loss("was closed"))

    def _ask(self, message: DriverMessage) -> "Future[bytes]":
        """Send a message that is answered while a command is carried out."""
        # In a concurrency group of its own: in the commands' it would wait for the one that hangs.
        call = self.actor.side.options(concurrency_group=SIDE_GROUP)
        future: Future[bytes] = call.remote(encode(message)).future()
        return future

    def _on_beats(self, answer: "Future[bytes]") -> None:
        # Without a readable answer the worker counts as silent.
        with suppress(Exception):
            if isinstance(beats := decode_from_worker(answer.result()), Beats):
                self._beats = beats.beats
                self._asked_s = None

    def _on_answer(self, seq: int, answer: "Future[bytes]") -> None:
        error = answer.exception()
        if error is not None:
            self._lose(self._loss(_reason(error)))
            return
        try:
            message = decode_from_worker(answer.result())
        except UnreadableMessageError as unreadable:
            self._lose(self._loss(f"sent a message that {unreadable}"))
            return
        with self._lock:
            pending = self._pending.pop(seq, None)
        # None: the worker had been given up, and its callers have got the error.
        if pending is not None and isinstance(message, Answer):
            settle(pending, message.reply)

    def _end_hung(self, reason: str, is_unreachable: bool) -> None:
        stacks: dict[str, str] = {}
        with suppress(Exception):  # none if it does not answer, which is why it is ended
            answer = decode_from_worker(self._ask(StacksRequest()).result(STACKS_TIMEOUT_S))
            stacks = answer.stacks if isinstance(answer, Stacks) else {}
        if is_unreachable and self.place.done() and self.place.exception() is None:
            self._cluster.avoid(self.place.result()[0])
        self._lose(self._loss(reason, formatted_stacks(stacks)))
        self._cluster.end_worker(self.actor)

    def _lose(self, lost: WorkerLostError) -> None:
        """Fail what is pending."""
        with self._lock:
            self._lost = self._lost or lost
            pending, self._pending = list(self._pending.values()), {}
        for future in pending:
            future.set_exception(self._lost)

    def _loss(self, reason: str, stacks: str = "") -> WorkerLostError:
        env_ids = entered_envs(self._beats)
        return WorkerLostError(self._index, reason, env_ids=env_ids, stacks=stacks)

    def _start_failure(self, error: BaseException) -> Exception:
        if any(part in str(error) for part in _CREATION):
            return RunFailedError(
                f"worker {self._index} could not be started on its Ray node; install the same "
                f"esper-grow there: {one_line(error)}"
            )
        return self._loss(_reason(error))


def _reason(error: BaseException) -> str:
    """Return what became of an actor, from Ray's many lines about it."""
    text = str(error)
    cause: Any = getattr(error, "cause", None)
    if cause is not None:  # raised by the worker itself
        return f"failed: {one_line(cause)}"
    _, found, rest = text.partition(_CAUSE)
    return one_line(rest.partition(". ")[0] if found else text)
