"""Running a job: opens its directory and hub, and runs trainer and monitors on an event loop."""

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TextIO, TypedDict, Unpack

from esper.leyline.config import Job
from esper.leyline.errors import InterruptedRunError, TelemetryLostError
from esper.leyline.telemetry import Event
from esper.nissa.bus.hub import TelemetryHub, use_hub
from esper.nissa.storage.run_directory import traces_directory
from esper.simic.training.assembly.control_assembly import (
    build_watchdog,
    start_control,
    started_event,
)
from esper.simic.training.assembly.engines import build_engine, choose_engine
from esper.simic.training.assembly.machine import run_settings
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, prepare_run
from esper.simic.training.assembly.trainer_assembly import build_trainer
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.checkpoints.run_state import RunState
from esper.simic.training.run_monitors import (
    Monitor,
    announce_engine,
    callback_monitor,
    monitors_of,
)
from esper.simic.training.run_opening import command_for, open_hub, open_run_directory
from esper.simic.training.run_result import TrainingResult
from esper.tolaria.engine import WorkerEngine
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import CallerEvent, StopFlag
from esper.tolaria.supervisor import stop_signals, supervise

__all__ = ["RunJobOptions", "run_job"]


class RunJobOptions(TypedDict, total=False):
    """The options of `run_job`."""

    command: str | None
    """Which controller decides: ppo, heuristic, random, wait or periodic; None takes the resumed
    run's, else ppo."""
    resumed: LoadedRun | None
    """The checkpoint to go on from."""
    watch: TextIO | None
    """Where progress is printed; None prints none."""
    monitors: Sequence[Monitor]
    """What else shows the run, besides the console and server that `job.run` asks for."""
    on_event: Callable[[Event], object] | None
    """Called with every event of this execution, on a thread of its own."""
    shutdown_event: CallerEvent | None
    """Set it to stop the run at the next cancellation point."""
    ready_event: CallerEvent | None
    """Set when everything is built and the first round begins."""


def run_job(job: Job, parts: RunParts, **options: Unpack[RunJobOptions]) -> TrainingResult:
    """Run a checked job, put together from `parts`, to its end on its own event loop."""
    resumed = options.get("resumed")
    stop = StopFlag(options.get("shutdown_event"))
    output = options.get("watch")
    monitors = [*monitors_of(job, output), *options.get("monitors", ())]
    with run_settings(job.training), stop_signals(stop):
        setup = prepare_run(
            job, command_for(job, options.get("command"), resumed), resumed, stop, parts=parts
        )
        choice = choose_engine(setup.worker)
        announce_engine(choice, job, output, resumed)
        # Before anything is written: workers may turn out not to fit this run.
        with closing(build_engine(setup.worker, choice=choice)) as engine:
            opened = open_run_directory(setup)
            with open_hub(opened, job) as hub:
                engine.report_restarts_to(hub.emit)
                if (callback := options.get("on_event")) is not None:
                    monitors.append(callback_monitor(callback, hub))
                if opened.event is not None:
                    hub.emit(opened.event)
                state = run_event_loop(
                    partial(_run, setup, hub, engine, monitors, options.get("ready_event")), stop
                )
    learner = setup.learner
    return TrainingResult(
        agent=None if learner is None else learner.agent,
        history=state.history,
        state=state,
        run_dir=opened.run_dir,
        traces_dir=traces_directory(opened.run_dir, job.run.profiler),
        data_note=setup.worker.dataset.note,
        is_stop_requested=stop.is_set(),
    )


async def _run(
    setup: RunSetup,
    hub: TelemetryHub,
    engine: WorkerEngine,
    monitors: Sequence[Monitor],
    ready_event: CallerEvent | None,
) -> RunState:
    # Set here, because a loop on another thread does not inherit the caller's hub.
    with use_hub(hub):
        try:
            return await _run_trainer(setup, hub, engine, monitors, ready_event)
        except InterruptedRunError as error:
            error.is_reported = bool(monitors) and not setup.job.run.quiet
            raise


async def _run_trainer(
    setup: RunSetup,
    hub: TelemetryHub,
    engine: WorkerEngine,
    monitors: Sequence[Monitor],
    ready_event: CallerEvent | None,
) -> RunState:
    control = await start_control(setup)
    trainer = build_trainer(setup, hub, engine, control)
    watchdog = build_watchdog(setup, engine, control, hub.emit, "operational.jsonl")
    if ready_event is not None:
        ready_event.set()
    try:
        return await supervise(
            partial(trainer.run, started_event(setup)),
            background=[partial(monitor, hub) for monitor in monitors],
            watchdog=watchdog,
            close_log=partial(_close_log, hub),
        )
    finally:
        control.close()


def _close_log(hub: TelemetryHub) -> None:
    """Write everything that was emitted and end the live feed."""
    with suppress(TelemetryLostError):  # leaving the hub's own `with` raises it again
        hub.close()
