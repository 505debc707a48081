"""Executes runs of a comparison in worker processes.

With small networks, two processes are twice as fast as two lanes of one process, which share the
interpreter lock; the results are the same.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from esper.child_process import ChildProcess, serve
from esper.leyline.comparison import ArmRun, RunRequest
from esper.leyline.errors import ContractError, ExitCode, RunFailedError, UsageError
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

    _child: ChildProcess | None = None
    """None before the first request, and after a request without a reply."""

    @property
    def pid(self) -> int | None:
        """Return the process id, or None if no process is running."""
        return None if self._child is None else self._child.pid

    def execute(self, request: RunRequest, stop: StopFlag) -> ArmRun:
        """Execute a run and wait for it; a stop ends the wait and kills the run.

        Raises:
            UsageError: if the run raises one.
            RunFailedError: if the run fails otherwise, or its process ends.
            InterruptedRunError: if a stop was requested.
        """
        child = self._child = self._child or ChildProcess(__name__)
        try:
            child.send(request)
            run = child.receive(ArmRun, check=stop.checkpoint)
        except (UsageError, ContractError, RunFailedError):
            raise  # a reply: the process can execute another run
        except BaseException:
            self.end()
            raise
        if run is None:
            code = child.exit_code()
            self.end()
            raise RunFailedError(
                f"the process that ran {request.arm} under seed {request.seed} ended with code "
                f"{code}; finished runs are saved, run the same command to continue"
            )
        return run

    def end(self) -> None:
        """Kill the process; a run in progress is lost."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()


@dataclass(eq=False, slots=True)
class RunWorker:
    """Executes requests in the worker process; arms and data are loaded once."""

    _arms: dict[tuple[str, ...], tuple[Arm, ...]] = field(default_factory=dict)
    _dataset: TensorDataset | None = None

    def execute(self, encoded: bytes) -> ArmRun:
        """Execute an encoded request."""
        request = msgspec.json.decode(encoded, type=RunRequest)
        # The parent stops a run by killing this process, so this flag is never set.
        stop = StopFlag()
        if request.arms not in self._arms:
            self._arms[request.arms] = parse_arms(request.arms)
        arm = next(arm for arm in self._arms[request.arms] if arm.name == request.arm)
        if arm.digest(request.stratum) != request.digest:
            raise UsageError(
                f"{request.arm}: its checkpoint has changed since the comparison began; compare a "
                "copy of it"
            )
        if self._dataset is None:
            self._dataset = load_data(request.job, stop)
            return_free_memory()
        return run_arm(
            request.job,
            arm,
            stratum=request.stratum,
            seed=request.seed,
            stop=stop,
            greedy=request.is_greedy,
            model=request.model,
            dataset=self._dataset,
        )


def main() -> int:
    """Respond to requests until the parent process closes stdin or ends."""
    share_one_heap()
    with one_thread_per_worker():
        warm_up_math()
        serve(RunWorker().execute)
    return ExitCode.OK


if __name__ == "__main__":
    raise SystemExit(main())
