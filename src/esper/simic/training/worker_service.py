"""A worker that is driven by messages: what each of them makes it do, however they travel."""

import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from esper.leyline.errors import EsperError, InterruptedRunError, UnreadableMessageError
from esper.leyline.heap import return_free_memory
from esper.leyline.workers import (
    Answer,
    Beats,
    BeatsRequest,
    Reply,
    Request,
    Stacks,
    StacksRequest,
    Stop,
    WorkerError,
    WorkerMessage,
    WorkerReady,
    WorkerRefused,
    decode_from_driver,
    decode_spec,
)
from esper.runtime.tasks import load_task
from esper.simic.training.assembly.gpu_math import deterministic_gpu_math
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.worker_assembly import build_worker
from esper.simic.training.assembly.worker_identity import worker_identity
from esper.simic.training.assembly.worker_setup import prepare_worker
from esper.tolaria.lanes import lane_stacks
from esper.tolaria.pulse import Pulse
from esper.tolaria.stopping import StopFlag
from esper.tolaria.worker import Worker

__all__ = ["WorkerService", "error_from", "start_service"]


class WorkerService:
    """Carries out what the driver's messages ask for."""

    def __init__(
        self, worker: Worker[Any, Any], pulse: Pulse, stop: StopFlag, settings: ExitStack
    ) -> None:
        self._worker = worker
        self._pulse = pulse
        self._stop = stop
        # Settings of torch that hold as long as the worker: the process has no other task.
        self._settings = settings
        self._num_requests = 0

    def receive(self, data: bytes) -> "Future[WorkerMessage] | None":
        """Start what a message asks for; return its answer, or None if it gets none.

        Raises:
            UnreadableMessageError: for anything that is not the driver's next message.
        """
        message = decode_from_driver(data)
        answer: Future[WorkerMessage] = Future()
        match message:
            case Request(seq=seq, command=command):
                # A message lost or doubled on the way would shift all replies by one.
                if seq != self._num_requests:
                    raise UnreadableMessageError(
                        f"is request {seq} where request {self._num_requests} was due"
                    )
                self._num_requests += 1
                carried_out = self._worker.submit(command)
                carried_out.add_done_callback(_Answering(answer, seq))
            case Stop(reason=reason):
                self._stop.set(reason)
                return None
            case StacksRequest():
                # Answered by the receiving thread, not by a lane: it is asked because a lane does
                # not answer.
                answer.set_result(Stacks(stacks=lane_stacks(self._worker.lanes)))
            case BeatsRequest():
                answer.set_result(Beats(beats=self._pulse.read()))
        return answer


class _Answering:
    """Turns the end of a command into the answer to its request."""

    def __init__(self, answer: "Future[WorkerMessage]", seq: int) -> None:
        self._answer = answer
        self._seq = seq

    def __call__(self, done: "Future[Reply]") -> None:
        error = done.exception()
        reply = done.result() if error is None else Reply(error=error_from(error))
        self._answer.set_result(Answer(seq=self._seq, reply=reply))


def start_service(
    data: bytes, pulse_for: Callable[[int], Pulse]
) -> tuple[WorkerMessage, WorkerService | None]:
    """Build the worker of an encoded specification; return what to report of it, and the worker.

    Args:
        data: the specification.
        pulse_for: returns the memory for the heartbeats of some number of lanes.
    """
    spec, stop, settings = decode_spec(data), StopFlag(), ExitStack()
    settings.enter_context(deterministic_gpu_math(spec.job.training))
    try:
        load_task(spec.job.training.task)  # the driver's user has named it
        setup = prepare_worker(spec.job, stop, parts=RunParts(), env_ids=spec.env_ids)
        pulse = pulse_for(spec.lanes)
        worker = build_worker(
            setup,
            spec.env_ids,
            lanes=spec.lanes,
            topologies=spec.topologies,
            # Other workers have the other cores.
            has_feeder=spec.lanes > 1,
            pulse=pulse,
        )
        identity = worker_identity(setup)
    except EsperError as error:
        # A user's mistake is reported as the driver would report it, not as a lost worker.
        return WorkerRefused(message=str(error), exit_code=int(error.exit_code)), None
    return_free_memory()
    return WorkerReady(identity=identity), WorkerService(worker, pulse, stop, settings)


def error_from(error: BaseException) -> WorkerError:
    """Describe what a command raised."""
    return WorkerError(
        error_type=type(error).__name__,
        message=str(error),
        traceback="".join(traceback.format_exception(error)),
        is_interruption=isinstance(error, InterruptedRunError),
    )
