"""A port to a worker in a process of its own."""

import os
import signal
import socket
import threading
import time
from contextlib import suppress

from esper.leyline.errors import UnreadableMessageError
from esper.leyline.workers import (
    Beat,
    Request,
    StacksRequest,
    Stop,
    WorkerSpec,
    decode_from_worker,
    encode,
)
from esper.tolaria.fork_server import ForkServer
from esper.tolaria.pulse import Pulse
from esper.tolaria.remote_port import RemotePort
from esper.tolaria.stopping import StopFlag
from esper.tolaria.wire import Wire

__all__ = ["ProcessPort"]


class ProcessPort(RemotePort):
    """Starts a worker process and exchanges messages with it."""

    def __init__(self, spec: WorkerSpec, server: ForkServer, stop: StopFlag) -> None:
        """Fork the worker and send it its specification, without waiting for it.

        Args:
            spec: what the worker is built from.
            server: forks the process.
            stop: passed on to the worker.
        """
        super().__init__(spec, stop)
        self._server = server
        self._pulse, pulse_descriptor = Pulse.create(max(1, spec.lanes))
        ours, theirs = socket.socketpair()
        with theirs:
            self.pid = server.fork([theirs.fileno(), pulse_descriptor])
        os.close(pulse_descriptor)
        self._wire = Wire(ours)
        self._num_answered_before = 0
        """As of the last check for silence."""
        self._idle_since_s = time.monotonic()
        self._reader = threading.Thread(
            target=self._read, name=f"worker-{spec.index} replies", daemon=True
        )
        self._send(spec)
        self._reader.start()

    def close(self) -> None:
        """End the worker and wait for its process; it is killed if it does not end by itself."""
        self._is_ending = True
        if not self._started.done():
            self._end()  # it listens only once it has started
        self._wire.close()
        self._reader.join()

    def _send(self, message: Request | Stop | StacksRequest | WorkerSpec) -> None:
        # If the other end is gone, the reader finds out and fails what is pending.
        with suppress(OSError):
            self._wire.send(encode(message))

    def _silent_s(self) -> float:
        return max(self._ignored_s(), *(beat.silent_s for beat in self._beats()))

    def _ignored_s(self) -> float:
        """Return for how long all lanes have been idle although a command is pending.

        A worker that was suspended between two commands never begins the next one.
        """
        now_s, num_answered = time.monotonic(), self._num_sent - len(self._pending)
        is_busy = any(beat.silent_s > 0 for beat in self._beats())
        if is_busy or not self._pending or num_answered != self._num_answered_before:
            self._num_answered_before, self._idle_since_s = num_answered, now_s
        return now_s - self._idle_since_s

    def _beats(self) -> tuple[Beat, ...]:
        return self._pulse.read()

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _report_wait(self, waited_s: float) -> None:
        """Do nothing: a process waits for nothing but its data."""

    def _read(self) -> None:
        """Receive messages until the connection ends, then fail what is pending."""
        unreadable: str | None = None
        try:
            while (data := self._wire.receive()) is not None:
                self._take(decode_from_worker(data))
        except UnreadableMessageError as error:
            unreadable = f"sent a message that {error}"
            self._wire.close()
        ending = self._server.reap(self.pid)
        self._lose(unreadable or ending)
