"""A worker in a process of its own: receives commands, sends replies, and ends with its driver."""

import os
import socket
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import msgspec

from esper.leyline.errors import EsperError, ExitCode, InterruptedRunError
from esper.leyline.workers import (
    Answer,
    DriverMessage,
    Reply,
    Request,
    Stacks,
    StacksRequest,
    Stop,
    WorkerError,
    WorkerMessage,
    WorkerReady,
    WorkerRefused,
    WorkerSpec,
)
from esper.simic.training.assembly.machine import (
    one_thread_per_worker,
    return_free_memory,
    share_one_heap,
    warm_up_math,
)
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.worker_assembly import build_worker
from esper.simic.training.assembly.worker_setup import prepare_worker, worker_identity
from esper.tolaria.lanes import lane_stacks
from esper.tolaria.pulse import Pulse
from esper.tolaria.stopping import StopFlag
from esper.tolaria.wire import Wire
from esper.tolaria.worker import Worker

__all__ = ["error_from", "serve"]

_ENCODER = msgspec.msgpack.Encoder()
_SPEC_DECODER = msgspec.msgpack.Decoder(WorkerSpec)
_DECODER = msgspec.msgpack.Decoder(DriverMessage)
_STDERR: Final = 2


def serve(descriptors: Sequence[int]) -> int:
    """Run a worker until its driver closes the connection or ends; return the exit code.

    Args:
        descriptors: the connection to the driver, and the memory for heartbeats.
    """
    connection, pulse = descriptors
    # Whatever a library prints must not mix with what the driver prints for programs.
    os.dup2(_STDERR, sys.stdout.fileno())
    wire = Wire(socket.socket(fileno=connection))
    data = wire.receive()
    if data is None:
        return ExitCode.FAILED
    share_one_heap()
    with one_thread_per_worker():
        warm_up_math()
        _serve(wire, _SPEC_DECODER.decode(data), pulse)
    return ExitCode.OK


def _serve(wire: Wire, spec: WorkerSpec, pulse_descriptor: int) -> None:
    stop = StopFlag()
    try:
        setup = prepare_worker(spec.job, stop, parts=RunParts())
        worker = build_worker(
            setup,
            spec.env_ids,
            lanes=spec.lanes,
            topologies=spec.topologies,
            pulse=Pulse.open(pulse_descriptor, spec.lanes),
        )
        identity = worker_identity(setup)
    except EsperError as error:
        _send(wire, WorkerRefused(message=str(error), exit_code=int(error.exit_code)))
        return
    return_free_memory()
    _send(wire, WorkerReady(identity=identity))
    _carry_out(wire, worker, stop)


def _carry_out(wire: Wire, worker: Worker[Any, Any], stop: StopFlag) -> None:
    """Submit commands as they arrive; the worker's lanes carry them out in order."""
    while (data := wire.receive()) is not None:
        match _DECODER.decode(data):
            case Request(seq=seq, command=command):
                worker.submit(command).add_done_callback(partial(_answer, wire, seq))
            case Stop(reason=reason):
                stop.set(reason)
            case StacksRequest():
                _send(wire, Stacks(stacks=lane_stacks(worker.lanes)))


def _answer(wire: Wire, seq: int, done: "Future[Reply]") -> None:
    error = done.exception()
    reply = done.result() if error is None else Reply(error=error_from(error))
    _send(wire, Answer(seq=seq, reply=reply))


def error_from(error: BaseException) -> WorkerError:
    """Describe what a command raised."""
    return WorkerError(
        error_type=type(error).__name__,
        message=str(error),
        traceback="".join(traceback.format_exception(error)),
        is_interruption=isinstance(error, InterruptedRunError),
    )


def _send(wire: Wire, message: WorkerMessage) -> None:
    try:
        wire.send(_ENCODER.encode(message))
    except OSError:
        # The driver is gone, and with it everybody who could use a result.
        os._exit(ExitCode.FAILED)
