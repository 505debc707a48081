"""Reading large logs in several processes; tasks and results are passed as JSON.

msgspec holds the GIL while it decodes, so only processes use a second core. A plain child process
starts faster and uses less memory than a multiprocessing pool.
"""

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from esper.leyline.errors import ContractError, UsageError
from esper.nissa.counting import CountTask, Tally, count_part

if TYPE_CHECKING:
    from esper.nissa.run_profile import Scan, ScanTask

__all__ = ["run_tasks", "started"]

Result = TypeVar("Result", "Tally", "Scan")

_REFUSED: Final = 2


@contextmanager
def started(task: "CountTask | ScanTask", result: type[Result]) -> Iterator[Callable[[], Result]]:
    """Start a task in its own process; yield a function that waits for the result."""
    with _start(task) as child:
        try:
            yield partial(_finish, child, result)
        finally:
            child.kill()


def run_tasks(tasks: "Sequence[CountTask | ScanTask]", result: type[Result]) -> list[Result]:
    """Run every task in its own process and return their results in order."""
    with ExitStack() as stack:
        waits = [stack.enter_context(started(task, result)) for task in tasks]
        return [wait() for wait in waits]


def _start(task: "CountTask | ScanTask") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "esper.nissa.workers", msgspec.json.encode(task).decode()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)


def _finish(child: subprocess.Popen[bytes], result: type[Result]) -> Result:
    output, _ = child.communicate()
    if child.returncode == _REFUSED:
        raise UsageError(output.decode())
    if child.returncode != 0:
        raise ContractError(f"a reading process ended with code {child.returncode}")
    return msgspec.json.decode(output, type=result)


def _work(text: str) -> int:
    try:
        result = _carry_out(text)
    except UsageError as error:
        sys.stdout.write(str(error))
        return _REFUSED
    sys.stdout.buffer.write(msgspec.json.encode(result))
    return 0


def _carry_out(text: str) -> "Tally | Scan":
    if CountTask.__struct_config__.tag == msgspec.json.decode(text, type=_Tag).type:
        return count_part(msgspec.json.decode(text, type=CountTask))
    # Imported here because the event table that a scan needs would double a count's memory.
    from esper.nissa.run_profile import ScanTask, scan_log

    return scan_log(msgspec.json.decode(text, type=ScanTask))


class _Tag(msgspec.Struct):
    type: str


if __name__ == "__main__":
    gc.disable()  # readers create no reference cycles; collection would take a tenth of the time
    sys.exit(_work(sys.argv[1]))
