"""Containment: what one env's work raises becomes that env's failure and touches no other env."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from esper.leyline.errors import EnvFaultError, InterruptedRunError
from esper.leyline.messages import EnvFailure, Phase

__all__ = ["Place", "contained"]


class Place(NamedTuple):
    """Which part of a step an env is in, for the report about an exception."""

    phase: Phase
    step: int | None = None
    batch: int | None = None


@contextmanager
def contained(failures: list[EnvFailure], env_id: int, place: Place) -> Iterator[None]:
    """Append what the block raises to `failures`; a request to stop the run is raised on."""
    try:
        yield
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
