"""A port to a worker that is a Ray actor: messages are the arguments and results of its methods."""

import math
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final

from esper.leyline.errors import RunFailedError, UnreadableMessageError
from esper.leyline.workers import (
    Beat,
    Beats,
    BeatsRequest,
    DriverMessage,
    Request,
    StacksRequest,
    Stop,
    WorkerSpec,
    decode_from_worker,
    encode,
)
from esper.tolaria.ray_cluster import SIDE_GROUP, RayCluster, one_line
from esper.tolaria.remote_port import RemotePort
from esper.tolaria.stopping import StopFlag

__all__ = ["RayPort"]

PATIENCE_S: Final = 15.0
"""How long a worker may take to start before a message says what it may be waiting for."""
_CAUSE: Final = "The actor is dead because "
_CREATION: Final = ("creation task", "failed to be imported", "failed to import")
"""Parts of Ray's messages about an actor whose class cannot be loaded on its node."""


class RayPort(RemotePort):
    """Starts an actor and exchanges messages with it."""

    def __init__(self, spec: WorkerSpec, cluster: RayCluster, stop: StopFlag) -> None:
        """Start the actor and send it its specification, without waiting for it.

        Args:
            spec: what the worker is built from.
            cluster: where the actor is started.
            stop: passed on to the worker.
        """
        super().__init__(spec, stop)
        self._cluster = cluster
        self._patient_until_s = PATIENCE_S
        self._last_beats: tuple[Beat, ...] = ()
        """As of the last answer."""
        self._asked_s: float | None = None
        """When the beats were asked for; None once they have arrived."""
        self.actor = cluster.start_worker(lanes=spec.lanes)
        self.actor.start.remote(encode(spec)).future().add_done_callback(self._on_answer)
        self.place: Future[tuple[str, int]] = self.actor.place.remote().future()
        """The worker's node and process id."""

    def close(self) -> None:
        """End the actor."""
        self._is_ending = True
        self._cluster.end_worker(self.actor)
        self._lose("was closed")

    def _send(self, message: Request | Stop | StacksRequest) -> None:
        if isinstance(message, Request):
            answer = self.actor.carry_out.remote(encode(message)).future()
            answer.add_done_callback(self._on_answer)
        else:
            self._ask(message).add_done_callback(self._on_side_answer)

    def _ask(self, message: DriverMessage) -> "Future[bytes]":
        """Send a message that is answered while a command is carried out."""
        call = self.actor.side.options(concurrency_group=SIDE_GROUP)
        future: Future[bytes] = call.remote(encode(message)).future()
        return future

    def _silent_s(self) -> float:
        """Ask for heartbeats, and return for how long they or an answer have been missing.

        A node that cannot be reached is silent too: it is given up after our deadline, which is
        usually shorter than Ray's own.
        """
        now_s = time.monotonic()
        unanswered_s = 0.0 if self._asked_s is None else now_s - self._asked_s
        if self._asked_s is None:
            self._asked_s = now_s
            self._ask(BeatsRequest()).add_done_callback(self._on_side_answer)
        return max([unanswered_s, *(beat.silent_s for beat in self._last_beats)])

    def _beats(self) -> tuple[Beat, ...]:
        return self._last_beats

    def _end(self) -> None:
        # A worker that answers neither is on a node that cannot be reached, or as good as.
        is_unreachable = self._asked_s is not None and not self._stacks.done()
        if is_unreachable and self.place.done() and self.place.exception() is None:
            self._cluster.avoid(self.place.result()[0])
        self._cluster.end_worker(self.actor)

    def _report_wait(self, waited_s: float) -> None:
        if waited_s > self._patient_until_s:
            self._patient_until_s = math.inf
            self._cluster.report_waiting(self._index)

    def _on_answer(self, answer: "Future[bytes]") -> None:
        error = answer.exception()
        if error is not None:
            if any(part in str(error) for part in _CREATION):
                self._fail_start(error)
            self._lose(_reason(error))
            return
        try:
            self._take(decode_from_worker(answer.result()))
        except UnreadableMessageError as unreadable:
            self._lose(f"sent a message that {unreadable}")

    def _on_side_answer(self, answer: "Future[bytes]") -> None:
        # Without a readable answer the worker counts as silent.
        with suppress(Exception):
            message = decode_from_worker(answer.result())
            if isinstance(message, Beats):
                self._last_beats, self._asked_s = message.beats, None
            else:
                self._take(message)

    def _fail_start(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self._started.set_exception(
                RunFailedError(
                    f"worker {self._index} could not be started on its Ray node; install the same "
                    f"esper-grow there: {one_line(error)}"
                )
            )


def _reason(error: BaseException) -> str:
    """Return what became of an actor, from Ray's many lines about it."""
    text = str(error)
    cause: Any = getattr(error, "cause", None)
    if cause is not None:  # raised by the worker itself
        return f"failed: {one_line(cause)}"
    _, found, rest = text.partition(_CAUSE)
    return one_line(rest.partition(". ")[0] if found else text)
