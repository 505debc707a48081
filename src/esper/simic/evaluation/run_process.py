"""Runs of a comparison in a process of their own: orders come in by line, runs go out.

Two processes get through small networks twice as fast as two lanes of one process, which share one
interpreter; the runs are the same.
"""

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Final

import msgspec

from esper.leyline.comparison import ArmRun, RunAnswer, RunOrder
from esper.leyline.errors import EsperError, ExitCode, RunFailedError, UsageError
from esper.runtime.datasets import TensorDataset
from esper.simic.evaluation.arms import Arm, parse_arms, run_arm
from esper.simic.training.machine import one_thread_per_worker, warm_up_math
from esper.simic.training.vectorized import load_data
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

    @property
    def pid(self) -> int | None:
        """Return the number of the process; None before its first order."""
        return None if self._child is None else self._child.pid

    def make(self, order: RunOrder, stop: StopFlag) -> ArmRun:
        """Wait for a run to be made; a stop ends the wait, `end` the run.

        Raises:
            UsageError: as the run does.
            RunFailedError: if it fails in another way, or takes its process along.
            InterruptedRunError: if a stop was asked for.
        """
        child = self._child = self._child or _begin()
        assert child.stdin is not None, "the child listens"
        assert child.stdout is not None, "the child answers"
        # If it has ended, that shows in its answer.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(msgspec.json.encode(order) + b"\n")
            child.stdin.flush()
        while not select.select([child.stdout], [], [], POLL_S)[0]:
            stop.checkpoint()
        line = child.stdout.readline()
        if not line:
            raise RunFailedError(
                f"the process that ran {order.arm} under seed {order.seed} ended with code "
                f"{child.wait()}; give the same command again to go on"
            )
        return _run_in(msgspec.json.decode(line, type=RunAnswer))

    def end(self) -> None:
        """End the process; what it has not answered yet is lost."""
        if self._child is not None:
            self._child.kill()
            # Closes the pipes and waits.
            self._child.communicate()


def _begin() -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", __name__]
    # What a terminal sends to a whole group is for whoever gives the orders.
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )


def _run_in(answer: RunAnswer) -> ArmRun:
    if answer.run is not None:
        return answer.run
    raise (UsageError if answer.exit_code == ExitCode.USAGE else RunFailedError)(answer.error)


@dataclass(eq=False, slots=True)
class _Maker:
    """Carries out orders; arms and data are read once."""

    _arms: dict[tuple[str, ...], tuple[Arm, ...]] = field(default_factory=dict)
    _dataset: TensorDataset | None = None

    def answer(self, order: RunOrder) -> RunAnswer:
        try:
            return RunAnswer(run=self._make(order))
        except EsperError as error:
            return RunAnswer(error=str(error), exit_code=int(error.exit_code))

    def _make(self, order: RunOrder) -> ArmRun:
        # Whoever gives the orders ends this process to stop it.
        stop = StopFlag()
        if order.arms not in self._arms:
            self._arms[order.arms] = parse_arms(order.arms)
        if self._dataset is None:
            self._dataset = load_data(order.job, stop)
        return run_arm(
            order.job,
            next(arm for arm in self._arms[order.arms] if arm.name == order.arm),
            stratum=order.stratum,
            seed=order.seed,
            stop=stop,
            greedy=order.is_greedy,
            model=order.model,
            dataset=self._dataset,
        )


def main() -> int:
    """Answer orders until there are no more, or nobody to hear of them."""
    with contextlib.suppress(BrokenPipeError), _answers() as answers, one_thread_per_worker():
        warm_up_math()
        maker = _Maker()
        for line in sys.stdin.buffer:
            answer = maker.answer(msgspec.json.decode(line, type=RunOrder))
            answers.write(msgspec.json.encode(answer) + b"\n")
            answers.flush()
    return ExitCode.OK


@contextlib.contextmanager
def _answers() -> Iterator[IO[bytes]]:
    """Keep stdout for the answers; whatever else is printed goes to stderr."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield answers


if __name__ == "__main__":
    raise SystemExit(main())
