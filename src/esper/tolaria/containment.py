"""Error isolation: an exception in one env becomes that env's failure and affects no other env."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from esper.leyline.errors import EnvFaultError, InterruptedRunError
from esper.leyline.messages import EnvFailure, Phase

__all__ = ["Place", "contained"]


class Place(NamedTuple):
    """The phase, step and batch an env is in, recorded with an exception."""

    phase: Phase
    step: int | None = None
    batch: int | None = None


@contextmanager
def contained(failures: list[EnvFailure], env_id: int, place: Place) -> Iterator[None]:
    """Append an exception raised in the block to `failures`; re-raise InterruptedRunError."""
    try:
        yield
    # A stop is meant for the run, not for the env that happens to be at work.
    except InterruptedRunError:
        raise
    except Exception as error:
        failures.append(_failure_of(error, env_id, place))


def _failure_of(error: Exception, env_id: int, place: Place) -> EnvFailure:
    fault = error if isinstance(error, EnvFaultError) else None
    return EnvFailure(
        env_id=env_id,
        phase=place.phase,
        step=place.step,
        batch=place.batch,
        slot_id=None if fault is None else fault.slot_id,
        layer=None if fault is None else fault.layer,
        error_type=type(error).__name__,
        message=str(error),
    )
