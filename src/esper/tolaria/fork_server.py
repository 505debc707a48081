"""A process that has imported what workers need, and forks a worker within milliseconds.

Importing torch takes more than a second; a fork of a process that has imported it takes 20 ms. The
server has one thread and runs nothing but imports before it forks, so that a fork copies a
well-defined state. It does not run the caller's main module, as multiprocessing's would.

Usage: python -m esper.tolaria.fork_server DESCRIPTOR MODULE:FUNCTION
"""

import atexit
import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from esper.leyline.errors import RunFailedError
from esper.leyline.stop_signals import STOP_SIGNALS

__all__ = ["ForkServer", "main"]

_MESSAGE: Final = struct.Struct("<cq")
"""An operation or nothing, and a number."""
_FORK: Final = b"F"
_REAP: Final = b"R"
_MAX_DESCRIPTORS: Final = 8
START_TIMEOUT_S: Final = 120.0
"""How long the server may take for its imports."""
REAP_TIMEOUT_S: Final = 5.0
"""How long a worker that was asked to end may take before it is killed."""
POLL_S: Final = 0.01
_UNKNOWN_STATUS: Final = 127 << 8
"""The wait status of a process that exited with code 127."""


class ForkServer:
    """The driver's side: starts the server with the first fork and ends it with this process."""

    def __init__(self, target: str) -> None:
        """Name what a fork runs.

        Args:
            target: `module:function`; the function gets the descriptors and returns an exit code.
        """
        self._target = target
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._has_answered = False
        """Whether the server has finished its imports."""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the server if it is not running, without waiting for its imports."""
        with self._lock:
            self._connected()

    def fork(self, descriptors: Sequence[int]) -> int:
        """Fork a process that inherits the descriptors; return its process id."""
        with self._lock:
            connection = self._connected()
            try:
                socket.send_fds(connection, [_MESSAGE.pack(_FORK, 0)], list(descriptors))
                return self._answer(connection)
            except TimeoutError:
                self._end_server()
                raise RunFailedError(
                    "workers cannot be started: importing what they need takes more than "
                    f"{START_TIMEOUT_S:.0f} s"
                ) from None
            except OSError as error:
                raise RunFailedError(f"workers cannot be started: {error}") from None

    def reap(self, pid: int) -> str:
        """Wait for a forked process, killing it after a while; return how it ended."""
        with self._lock:
            if self._socket is None:
                return "its parent process has ended"
            try:
                self._socket.sendall(_MESSAGE.pack(_REAP, pid))
                return _ending(self._answer(self._socket))
            except OSError:
                return "its parent process has ended"

    def close(self) -> None:
        """End the server, which kills the workers that are left."""
        with self._lock:
            self._end_server()

    def _connected(self) -> socket.socket:
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), self._target]
        with theirs:
            # In a session of its own: Ctrl-C reaches the driver only, which ends its workers.
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                # A library that starts threads when it is imported would make forking unsafe.
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        ours.settimeout(START_TIMEOUT_S)
        self._socket, self._has_answered = ours, False
        # However the driver ends, its end of the socket closes, and the server ends with its
        # workers; this only makes it happen before the interpreter is torn down.
        atexit.register(self.close)
        return ours

    def _end_server(self) -> None:
        connection, process = self._socket, self._process
        self._socket = self._process = None
        if connection is not None:
            connection.close()
        if process is not None:
            if not self._has_answered:
                process.kill()  # still importing, it would notice only afterwards
            process.wait()

    def _answer(self, connection: socket.socket) -> int:
        data = connection.recv(_MESSAGE.size, socket.MSG_WAITALL)
        if len(data) < _MESSAGE.size:
            raise ConnectionResetError("the process that starts them has ended")
        self._has_answered = True
        _, number = _MESSAGE.unpack(data)
        return int(number)


def _ending(status: int) -> str:
    """Describe a wait status."""
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exited with code {os.waitstatus_to_exitcode(status)}"


def main(arguments: Sequence[str]) -> int:
    """Fork on request until the driver closes the connection or ends."""
    descriptor, target = arguments
    # A service manager sends them to all processes; the driver ends its workers, which inherit it.
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)
    module, _, name = target.partition(":")
    run: Callable[[Sequence[int]], int] = getattr(importlib.import_module(module), name)
    children: set[int] = set()
    with socket.socket(fileno=int(descriptor)) as connection:
        while (request := _request(connection)) is not None:
            operation, number, descriptors = request
            if operation == _FORK:
                number = os.fork()
                if number == 0:
                    # The child must not hold the server's connection: its end shows the driver that
                    # the server is gone.
                    connection.close()
                    # Past the exit handlers and buffers of the server, which belong to the parent.
                    os._exit(run(descriptors))
                children.add(number)
                for inherited in descriptors:
                    os.close(inherited)
            else:
                children.discard(number)
                number = _reaped(number)
            connection.sendall(_MESSAGE.pack(operation, number))
    # The driver is gone, killed perhaps: workers must not outlive it.
    for child in children:
        os.kill(child, signal.SIGKILL)
    return 0


def _request(connection: socket.socket) -> tuple[bytes, int, list[int]] | None:
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE.size, _MAX_DESCRIPTORS)
    except OSError:
        return None
    if len(data) < _MESSAGE.size:
        return None
    operation, number = _MESSAGE.unpack(data)
    return operation, number, list(descriptors)


def _reaped(pid: int) -> int:
    """Return the wait status of a child, which is killed if it does not end by itself."""
    deadline_s = time.monotonic() + REAP_TIMEOUT_S
    try:
        while time.monotonic() < deadline_s:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return status
            time.sleep(POLL_S)
        os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        # A child of the server before this one, which was killed: how it ended is unknown.
        return _UNKNOWN_STATUS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
