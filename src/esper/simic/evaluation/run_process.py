"""Executes runs of a comparison in worker processes: one JSON line per request and response.

With small networks, two processes are twice as fast as two lanes of one process, which share the
interpreter lock; the results are the same.
"""

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import IO, Final

import msgspec

from esper.leyline.comparison import ArmRun, RunRequest, RunResponse
from esper.leyline.errors import ContractError, EsperError, ExitCode, RunFailedError, UsageError
from esper.runtime.datasets import TensorDataset
from esper.simic.evaluation.arm_run import run_arm
from esper.simic.evaluation.arms import Arm, parse_arms
from esper.simic.training.assembly.machine import (
    one_thread_per_worker,
    return_free_memory,
    share_one_heap,
    warm_up_math,
)
from esper.simic.training.assembly.worker_setup import load_data
from esper.tolaria.stopping import StopFlag

__all__ = ["RunProcess", "main", "run_processes"]

POLL_S: Final = 0.1
"""Polling interval of the stop flag."""


@contextlib.contextmanager
def run_processes(num_processes: int) -> Iterator[tuple["RunProcess", ...]]:
    """Provide worker processes that start with their first request, and kill them on exit."""
    processes = tuple(RunProcess() for _ in range(num_processes))
    try:
        yield processes
    finally:
        for process in processes:
            process.end()


@dataclass(eq=False, slots=True)
class RunProcess:
    """A worker process that executes one run at a time."""

    _child: "subprocess.Popen[bytes] | None" = None
    """None before the first request, and after a request without a response."""

    @property
    def pid(self) -> int | None:
        """Return the process id, or None if no process is running."""
        return None if self._child is None else self._child.pid

    def make(self, order: RunRequest, stop: StopFlag) -> ArmRun:
        """Execute a run and wait for it; a stop ends the wait, `end` kills the run.

        Raises:
            UsageError: if the run raises one.
            RunFailedError: if the run fails otherwise, or its process ends.
            InterruptedRunError: if a stop was requested.
        """
        child = self._child = self._child or _begin()
        try:
            line = _answer_of(child, order, stop)
            if not line:
                raise RunFailedError(
                    f"the process that ran {order.arm} under seed {order.seed} ended with code "
                    f"{child.wait()}; finished runs are saved, run the same command to continue"
                )
        except BaseException:
            self.end()
            raise
        return _run_in(msgspec.json.decode(line, type=RunResponse))

    def end(self) -> None:
        """Kill the process; a run in progress is lost."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            # Closes the pipes and waits.
            child.communicate()


def _begin() -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", __name__]
    # A new session: Ctrl-C must reach only the parent, which then ends its workers.
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )


def _answer_of(child: "subprocess.Popen[bytes]", order: RunRequest, stop: StopFlag) -> bytes:
    """Return the response line, or an empty one if the process has ended."""
    assert child.stdin is not None, "stdin is a pipe"
    assert child.stdout is not None, "stdout is a pipe"
    # If the process has ended, reading its response shows it.
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(msgspec.json.encode(order) + b"\n")
        child.stdin.flush()
    while not select.select([child.stdout], [], [], POLL_S)[0]:
        stop.checkpoint()
    return child.stdout.readline()


def _run_in(answer: RunResponse) -> ArmRun:
    if answer.run is not None:
        return answer.run
    errors = {ExitCode.USAGE: UsageError, ExitCode.INTERNAL: ContractError}
    raise errors.get(ExitCode(answer.exit_code), RunFailedError)(answer.error)


@dataclass(eq=False, slots=True)
class RunWorker:
    """Executes requests in the worker process; arms and data are loaded once."""

    _arms: dict[tuple[str, ...], tuple[Arm, ...]] = field(default_factory=dict)
    _dataset: TensorDataset | None = None

    def answer(self, order: RunRequest) -> RunResponse:
        try:
            return RunResponse(run=self._make(order))
        except EsperError as error:
            return RunResponse(error=str(error), exit_code=int(error.exit_code))

    def _make(self, order: RunRequest) -> ArmRun:
        # The parent stops a run by killing this process, so this flag is never set.
        stop = StopFlag()
        if order.arms not in self._arms:
            self._arms[order.arms] = parse_arms(order.arms)
        arm = next(arm for arm in self._arms[order.arms] if arm.name == order.arm)
        if arm.digest(order.stratum) != order.digest:
            raise UsageError(
                f"{order.arm}: its checkpoint has changed since the comparison began; compare a "
                "copy of it"
            )
        if self._dataset is None:
            self._dataset = load_data(order.job, stop)
            return_free_memory()
        return run_arm(
            order.job,
            arm,
            stratum=order.stratum,
            seed=order.seed,
            stop=stop,
            greedy=order.is_greedy,
            model=order.model,
            dataset=self._dataset,
        )


def main() -> int:
    """Respond to requests until the parent process closes stdin or ends."""
    orders = SimpleQueue[bytes]()
    share_one_heap()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError), _answers() as answers, one_thread_per_worker():
        warm_up_math()
        maker = RunWorker()
        while True:
            answer = maker.answer(msgspec.json.decode(orders.get(), type=RunRequest))
            answers.write(msgspec.json.encode(answer) + b"\n")
            answers.flush()
    return ExitCode.OK


def _listen(orders: "SimpleQueue[bytes]") -> None:
    """Read requests, and exit at the end of stdin: no parent waits for a run in progress."""
    for line in sys.stdin.buffer:
        orders.put(line)
    os._exit(ExitCode.OK)


@contextlib.contextmanager
def _answers() -> Iterator[IO[bytes]]:
    """Reserve stdout for responses; all other output goes to stderr."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield answers


if __name__ == "__main__":
    raise SystemExit(main())
