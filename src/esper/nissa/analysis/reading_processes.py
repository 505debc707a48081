"""Reading large logs in several processes.

msgspec holds the GIL while it decodes, so only processes use a second core. A plain child process
starts faster and uses less memory than a multiprocessing pool.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, TypeVar

import msgspec

from esper.leyline.errors import ContractError
from esper.nissa.analysis.child_process import ChildProcess

__all__ = ["run_tasks", "started"]

Result = TypeVar("Result", bound=msgspec.Struct)

_CHILD: Final = "esper.nissa.analysis.reading_child"


@contextmanager
def started(task: msgspec.Struct, kind: type[Result]) -> Iterator[Callable[[], Result]]:
    """Start a task in its own process; yield a function that waits for the result."""
    child = ChildProcess(_CHILD)
    try:
        child.send(task)
        yield partial(_result_of, child, kind)
    finally:
        child.kill()


def run_tasks(tasks: Sequence[msgspec.Struct], kind: type[Result]) -> list[Result]:
    """Run every task in its own process and return their results in order."""
    with ExitStack() as stack:
        waits = [stack.enter_context(started(task, kind)) for task in tasks]
        return [wait() for wait in waits]


def _result_of(child: ChildProcess, kind: type[Result]) -> Result:
    result = child.receive(kind)
    if result is None:
        raise ContractError(f"a reading process ended with code {child.exit_code()}")
    return result
