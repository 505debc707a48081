"""What a worker's messages mean for the driver, wherever the worker lives."""

from collections.abc import Mapping
from concurrent.futures import Future

from esper.leyline.errors import InterruptedRunError, RunFailedError, UsageError
from esper.leyline.workers import Reply, WorkerError, WorkerRefused

__all__ = ["error_of", "formatted_stacks", "refusal_of", "settle"]


def settle(future: "Future[Reply]", reply: Reply) -> None:
    """Set a reply as the result of its future; an error in it is raised by the waiting caller."""
    if reply.error is None:
        future.set_result(reply)
    else:
        future.set_exception(error_of(reply.error))


def error_of(error: WorkerError) -> Exception:
    """Return the exception that a worker's error is raised as."""
    if error.is_interruption:
        return InterruptedRunError(error.message)
    return RunFailedError(f"{error.error_type}: {error.message}\n{error.traceback}")


def refusal_of(refused: WorkerRefused) -> Exception:
    """Return the exception that a worker's refusal to start is raised as."""
    is_usage = refused.exit_code == UsageError.exit_code
    return UsageError(refused.message) if is_usage else RunFailedError(refused.message)


def formatted_stacks(stacks: Mapping[str, str]) -> str:
    """Return the stacks of a worker's threads as one text."""
    return "\n".join(f"{name}:\n{stack}" for name, stack in stacks.items())
