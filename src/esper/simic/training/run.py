"""Running a job: opens its directory and hub, and runs trainer and monitors on an event loop."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypeAlias, TypedDict, Unpack

from torch import nn

from esper.leyline.config import Job
from esper.leyline.errors import InterruptedRunError, TelemetryLostError
from esper.leyline.telemetry import Event
from esper.nissa.bus.hub import TelemetryHub, use_hub
from esper.nissa.sinks.callback import run_callback
from esper.nissa.sinks.delivery import rewind_positions
from esper.nissa.sinks.registry import check_sink
from esper.nissa.sinks.sink_process import run_sink
from esper.nissa.storage.run_directory import traces_directory
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.training.assembly.control_assembly import (
    build_watchdog,
    start_control,
    started_event,
)
from esper.simic.training.assembly.engines import EngineChoice, build_engine, choose_engine
from esper.simic.training.assembly.gpu_math import deterministic_gpu_math
from esper.simic.training.assembly.machine import (
    one_thread_per_worker,
    return_free_memory,
    share_one_heap,
    warm_up_math,
)
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, prepare_run
from esper.simic.training.assembly.trainer_assembly import GROWN_FILE, build_trainer
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.checkpoints.grown import load_grown
from esper.simic.training.checkpoints.run_state import RunState
from esper.simic.training.run_opening import command_for, open_hub, open_run_directory
from esper.simic.training.run_result import TrainingHistory, TrainingResult
from esper.tolaria.engine import WorkerEngine
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import CallerEvent, StopFlag
from esper.tolaria.supervisor import stop_signals, supervise

if TYPE_CHECKING:
    from esper.karn.view.snapshot import Verdict

__all__ = ["Monitor", "RunJobOptions", "TrainedPolicy", "run_job"]

Monitor: TypeAlias = Callable[[TelemetryHub], Coroutine[Any, Any, None]]
"""Shows a run: gets its hub, and ends with the run's log."""


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


class TrainedPolicy(NamedTuple):
    """An agent and the summaries of its rounds, and what else its run has left behind."""

    agent: PPOAgent
    history: TrainingHistory

    @property
    def run_dir(self) -> Path:
        """Return the directory of the run."""
        return self.history.result.run_dir

    @property
    def grown(self) -> nn.Module | None:
        """Load the best network that the run has grown; None for a task without networks."""
        path = self.run_dir / GROWN_FILE
        return load_grown(path) if path.exists() else None

    @property
    def verdict(self) -> "Verdict":
        """Return what the dashboard says of the run: whether the policy learns, and why."""
        from esper.karn.view.view_feed import read_run  # a run that is not watched loads no view

        return read_run(self.run_dir).snapshot().verdict


def run_job(job: Job, parts: RunParts, **options: Unpack[RunJobOptions]) -> TrainingResult:
    """Run a checked job, put together from `parts`, to its end on its own event loop."""
    resumed = options.get("resumed")
    stop = StopFlag(options.get("shutdown_event"))
    monitors = [
        *_sinks_of(job),
        *_monitors_for(job, options.get("watch")),
        *options.get("monitors", ()),
    ]
    share_one_heap()
    with one_thread_per_worker(), deterministic_gpu_math(job.training), stop_signals(stop):
        warm_up_math()
        setup = prepare_run(
            job, command_for(job, options.get("command"), resumed), resumed, stop, parts=parts
        )
        return_free_memory()  # what loading data and drawing weights took for a moment
        choice = choose_engine(setup.worker)
        _announce(choice, job, options.get("watch"), resumed)
        # Before anything is written: workers may turn out not to fit this run.
        with closing(build_engine(setup.worker, choice=choice)) as engine:
            opened = open_run_directory(setup)
            with open_hub(opened, job) as hub:
                engine.report_restarts_to(hub.emit)
                rewind_positions(opened.run_dir, hub.next_seq)
                if (callback := options.get("on_event")) is not None:
                    monitors.append(partial(run_callback, callback, hub.next_seq))
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


def _monitors_for(job: Job, output: TextIO | None) -> tuple[Monitor, ...]:
    """Return the console and the server that a run was asked to have, if any."""
    if output is None and job.run.serve is None:
        return ()
    from esper.karn.monitor import build_monitor  # a run that is not watched loads no server

    return (build_monitor(job.run, output),)


def _sinks_of(job: Job) -> Iterator[Monitor]:
    """Yield the sinks of a run; one that cannot be opened is an error before anything starts."""
    for text in job.run.sinks:
        check_sink(text, "--sink")
        yield partial(run_sink, text, job.run.sink_deadline_s)


def _announce(
    choice: EngineChoice, job: Job, output: TextIO | None, resumed: LoadedRun | None
) -> None:
    """Print which engine was chosen, and why, and whether there is nothing left to do."""
    if output is None or job.run.quiet:
        return
    from esper.karn.monitor import announce  # a run that is not watched loads no server

    num_rounds = job.training.n_episodes
    if resumed is not None and resumed.header.state.rounds_completed >= num_rounds:
        more = f"--rounds {num_rounds + 1} or more continues it"
        announce(f"the run has finished its {num_rounds} rounds; {more}", output)
        return
    announce(f"engine: {choice}", output)


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
