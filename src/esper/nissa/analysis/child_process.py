"""Child processes that read logs: modules that answer requests, with one JSON line each way.

The parent starts `python -m MODULE`, and the module calls `serve`. A reply contains a result, or
the error that the parent raises in its place.
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import IO, Final, TypeVar

import msgspec

from esper.leyline.errors import ContractError, EsperError, ExitCode, RunFailedError, UsageError

__all__ = ["ChildProcess", "serve"]

Result = TypeVar("Result", bound=msgspec.Struct)

_ERRORS: Final = {ExitCode.USAGE: UsageError, ExitCode.INTERNAL: ContractError}


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A result, or why there is none."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    exit_code: int = 0
    """Of the error; 0 for a result."""


class ChildProcess:
    """The parent's side of a child that answers one request at a time."""

    def __init__(self, module: str) -> None:
        # A new session: Ctrl-C must reach only the parent, which then ends its children.
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def send(self, request: msgspec.Struct) -> None:
        """Send a request; `receive` must follow."""
        assert self._process.stdin is not None, "stdin is a pipe"
        # If the child has ended, receiving its reply shows it.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()

    def receive(self, kind: type[Result]) -> Result | None:
        """Wait for the result of a request; return None if the child has ended without a reply.

        Args:
            kind: type of the result.

        Raises:
            UsageError: if the child raised one.
            ContractError: if the child raised one.
            RunFailedError: if the child raised another error of Esper.
        """
        assert self._process.stdout is not None, "stdout is a pipe"
        line = self._process.stdout.readline()
        # A child that is killed while it writes leaves an incomplete line.
        if not line.endswith(b"\n"):
            return None
        reply = msgspec.json.decode(line, type=_Reply)
        if reply.exit_code:
            raise _ERRORS.get(ExitCode(reply.exit_code), RunFailedError)(reply.error)
        return msgspec.json.decode(reply.result, type=kind)

    def exit_code(self) -> int:
        """Wait for the end of the child and return its exit code."""
        return self._process.wait()

    def kill(self) -> None:
        """Kill the child; a request in progress is lost."""
        self._process.kill()
        # Closes the pipes and waits.
        self._process.communicate()


def serve(answer: Callable[[bytes], msgspec.Struct]) -> None:
    """Answer requests until the parent closes stdin or ends; runs in the child."""
    requests = SimpleQueue[bytes]()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError), _replies() as replies:
        while True:
            reply = _reply_to(requests.get(), answer)
            replies.write(msgspec.json.encode(reply) + b"\n")
            replies.flush()


def _reply_to(request: bytes, answer: Callable[[bytes], msgspec.Struct]) -> _Reply:
    try:
        return _Reply(result=msgspec.Raw(msgspec.json.encode(answer(request))))
    except EsperError as error:
        return _Reply(error=str(error), exit_code=int(error.exit_code))


def _listen(requests: "SimpleQueue[bytes]") -> None:
    """Read requests, and exit at the end of stdin: no parent waits for a request in progress."""
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(ExitCode.OK)


@contextlib.contextmanager
def _replies() -> Iterator[IO[bytes]]:
    """Reserve stdout for replies; all other output goes to stderr."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as replies:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield replies
