"""Reading big logs in several processes: a task goes in as JSON, a result comes out as JSON.

msgspec holds the interpreter's lock while it decodes, so only processes use a second core. A plain
child with two pipes starts sooner and weighs less than a multiprocessing pool.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from esper.leyline.errors import ContractError, UsageError
from esper.nissa.counting import CountTask, Tally, count_part
from esper.nissa.scanning import Scan, ScanTask, scan_log

__all__ = ["run_tasks"]

Result = TypeVar("Result", Tally, Scan)

_REFUSED: Final = 2


def run_tasks(tasks: Sequence[CountTask | ScanTask], result: type[Result]) -> list[Result]:
    """Carry out every task in a process of its own and return their results in order."""
    children = [_start(task) for task in tasks]
    try:
        return [_finish(child, result) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()


def _start(task: CountTask | ScanTask) -> subprocess.Popen[bytes]:
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
    task: CountTask | ScanTask = msgspec.json.decode(text, type=CountTask | ScanTask)
    try:
        result = count_part(task) if isinstance(task, CountTask) else scan_log(task)
    except UsageError as error:
        sys.stdout.write(str(error))
        return _REFUSED
    sys.stdout.buffer.write(msgspec.json.encode(result))
    return 0


if __name__ == "__main__":
    sys.exit(_work(sys.argv[1]))
