"""Runs of a comparison in a process of their own: orders come in by line, runs go out.

Two processes get through small networks twice as fast as two lanes of one process, which share one
interpreter; the runs are the same.
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
from esper.simic.evaluation.arms import Arm, parse_arms, run_arm
from esper.simic.training.machine import (
    one_thread_per_worker,
    return_free_memory,
    share_one_heap,
    warm_up_math,
)
from esper.simic.training.run_setup import load_data
from esper.tolaria.stopping import StopFlag

__all__ = ["RunProcess", "main", "run_processes"]

POLL_S: Final = 0.1
"""How long a stop may go unnoticed."""


@contextlib.contextmanager
def run_processes(num_processes: int) -> Iterator[tuple["RunProcess", ...]]:
    """Provide processes that begin with their first order, and end them whatever they are doing."""
    processes = tuple(RunProcess() for _ in range(num_processes))
    try:
        yield processes
    finally:
        for process in processes:
            process.end()


@dataclass(eq=False, slots=True)
class RunProcess:
    """Another interpreter that makes one run at a time."""

    _child: "subprocess.Popen[bytes] | None" = None
    """None before the first order, and after one that was not answered."""

    @property
    def pid(self) -> int | None:
        """Return the number of the process, where there is one."""
        return None if self._child is None else self._child.pid

    def make(self, order: RunRequest, stop: StopFlag) -> ArmRun:
        """Wait for a run to be made; a stop ends the wait, `end` the run.

        Raises:
            UsageError: as the run does.
            RunFailedError: if it fails in another way, or takes its process along.
            InterruptedRunError: if a stop was asked for.
        """
        child = self._child = self._child or _begin()
        try:
            line = _answer_of(child, order, stop)
            if not line:
                raise RunFailedError(
                    f"the process that ran {order.arm} under seed {order.seed} ended with code "
                    f"{child.wait()}; runs that were made are kept, the same command goes on"
                )
        except BaseException:
            self.end()
            raise
        return _run_in(msgspec.json.decode(line, type=RunResponse))

    def end(self) -> None:
        """End the process; what it has not answered yet is lost."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            # Closes the pipes and waits.
            child.communicate()


def _begin() -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", __name__]
    # What a terminal sends to a whole group is for whoever gives the orders.
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )


def _answer_of(child: "subprocess.Popen[bytes]", order: RunRequest, stop: StopFlag) -> bytes:
    """Return a line, or nothing if the process has ended."""
    assert child.stdin is not None, "the child listens"
    assert child.stdout is not None, "the child answers"
    # If it has ended, that shows in its answer.
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
    """Carries out orders; arms and data are read once."""

    _arms: dict[tuple[str, ...], tuple[Arm, ...]] = field(default_factory=dict)
    _dataset: TensorDataset | None = None

    def answer(self, order: RunRequest) -> RunResponse:
        try:
            return RunResponse(run=self._make(order))
        except EsperError as error:
            return RunResponse(error=str(error), exit_code=int(error.exit_code))

    def _make(self, order: RunRequest) -> ArmRun:
        # Whoever gives the orders ends this process to stop it.
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
    """Answer orders; ends when whoever gives them does, however that comes about."""
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
    """Take orders, and end the process behind the last: nobody waits for a run under way."""
    for line in sys.stdin.buffer:
        orders.put(line)
    os._exit(ExitCode.OK)


@contextlib.contextmanager
def _answers() -> Iterator[IO[bytes]]:
    """Keep stdout for the answers; whatever else is printed goes to stderr."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield answers


if __name__ == "__main__":
    raise SystemExit(main())
