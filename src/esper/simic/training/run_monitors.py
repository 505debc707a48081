"""What shows a run while it is under way: console, server, sinks and a function of the caller."""

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TextIO, TypeAlias

from esper.leyline.config import Job
from esper.leyline.telemetry import Event
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.sinks.callback import run_callback
from esper.nissa.sinks.registry import check_sink
from esper.nissa.sinks.sink_process import run_sink
from esper.simic.training.checkpoints.checkpointer import LoadedRun

__all__ = ["Monitor", "announce_engine", "callback_monitor", "monitors_of"]

Monitor: TypeAlias = Callable[[TelemetryHub], Coroutine[Any, Any, None]]
"""Shows a run: gets its hub, and ends with the run's log."""


def monitors_of(job: Job, output: TextIO | None) -> Iterator[Monitor]:
    """Yield the sinks, console and server that a job asks for.

    A sink that cannot be opened or an address that is taken is an error before anything starts.
    """
    for text in job.run.sinks:
        check_sink(text, "--sink")
        yield partial(run_sink, text, job.run.sink_deadline_s)
    if output is None and job.run.serve is None:
        return
    from esper.karn.monitor import build_monitor  # a run that is not watched loads no server

    yield build_monitor(job.run, output)


def callback_monitor(callback: Callable[[Event], object], hub: TelemetryHub) -> Monitor:
    """Return what calls a function with every event of this execution of the run."""
    return partial(run_callback, callback, hub.next_seq)


def announce_engine(
    choice: object, job: Job, output: TextIO | None, resumed: LoadedRun | None
) -> None:
    """Print which engine was chosen, and why, or that there is nothing left to do."""
    if output is None or job.run.quiet:
        return
    from esper.karn.monitor import announce  # a run that is not watched loads no server

    num_rounds = job.training.n_episodes
    if resumed is not None and resumed.header.state.rounds_completed >= num_rounds:
        more = f"--rounds {num_rounds + 1} or more continues it"
        announce(f"the run has finished its {num_rounds} rounds; {more}", output)
        return
    announce(f"engine: {choice}", output)
