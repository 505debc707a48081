"""Reading large logs in several processes; tasks and results are passed as JSON.

msgspec holds the GIL while it decodes, so only processes use a second core. A plain child process
starts faster and uses less memory than a multiprocessing pool.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, TypeVar

import msgspec

from esper.leyline.errors import ContractError, UsageError

__all__ = ["REFUSED", "run_tasks", "started"]

Result = TypeVar("Result", bound=msgspec.Struct)

REFUSED: Final = 2
"""Exit code of a child that rejects its input; its output is the message."""


@contextmanager
def started(task: msgspec.Struct, result: type[Result]) -> Iterator[Callable[[], Result]]:
    """Start a task in its own process; yield a function that waits for the result."""
    with _start(task) as child:
        try:
            yield partial(_finish, child, result)
        finally:
            child.kill()


def run_tasks(tasks: Sequence[msgspec.Struct], result: type[Result]) -> list[Result]:
    """Run every task in its own process and return their results in order."""
    with ExitStack() as stack:
        waits = [stack.enter_context(started(task, result)) for task in tasks]
        return [wait() for wait in waits]


def _start(task: msgspec.Struct) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "esper.nissa.analysis.reading_child",
        msgspec.json.encode(task).decode(),
    ]
    # A process group of its own: Ctrl-C must reach only the parent, which then ends its children.
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, process_group=0
    )


def _finish(child: subprocess.Popen[bytes], result: type[Result]) -> Result:
    output, _ = child.communicate()
    if child.returncode == REFUSED:
        raise UsageError(output.decode())
    if child.returncode != 0:
        raise ContractError(f"a reading process ended with code {child.returncode}")
    return msgspec.json.decode(output, type=result)
