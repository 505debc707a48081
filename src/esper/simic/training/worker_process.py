"""A worker in a process of its own: receives commands, sends replies, and ends with its driver."""

import os
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from esper.leyline.errors import ExitCode, UnreadableMessageError
from esper.leyline.heap import share_one_heap
from esper.leyline.workers import WorkerMessage, encode, protocol_digest
from esper.simic.training.assembly.machine import (
    one_thread_per_worker,
)
from esper.simic.training.worker_service import start_service
from esper.tolaria.pulse import Pulse
from esper.tolaria.wire import Wire

__all__ = ["serve"]

_STDERR: Final = 2

# Takes some milliseconds; the workers are forks of the process that imports this module.
protocol_digest()


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
    # Before the lanes: it holds for threads that start from now on.
    share_one_heap()
    try:
        with one_thread_per_worker():
            _serve(wire, data, pulse)
    except UnreadableMessageError as error:
        sys.stderr.write(f"esper worker {os.getpid()} ends: it received a message that {error}\n")
        sys.stderr.flush()
        return ExitCode.FAILED
    return ExitCode.OK


def _serve(wire: Wire, spec: bytes, pulse_descriptor: int) -> None:
    """Submit commands as they arrive; the worker's lanes carry them out in order."""
    started, service = start_service(spec, partial(Pulse.open, pulse_descriptor))
    _send(wire, started)
    while service is not None and (data := wire.receive()) is not None:
        answer = service.receive(data)
        if answer is not None:
            answer.add_done_callback(partial(_send_result, wire))


def _send_result(wire: Wire, answer: "Future[WorkerMessage]") -> None:
    _send(wire, answer.result())


def _send(wire: Wire, message: WorkerMessage) -> None:
    try:
        wire.send(encode(message))
    except OSError:
        # The driver is gone, and with it everybody who could use a result.
        os._exit(ExitCode.FAILED)
