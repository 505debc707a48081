"""The trainer of a run with its schedule, checkpoints, reports and diagnostics."""

from functools import partial
from pathlib import Path

from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.storage.run_directory import CHECKPOINTS_DIRECTORY, traces_directory
from esper.simic.telemetry.phases import PhaseProfiler
from esper.simic.telemetry.step_events import StepRules
from esper.simic.telemetry.traces import StepTracer
from esper.simic.training.assembly.run_setup import RunSetup, grown_header
from esper.simic.training.checkpoints.checkpoint_store import CheckpointStore
from esper.simic.training.checkpoints.checkpointer import Checkpointer
from esper.simic.training.checkpoints.grown import GROWN_FILE, GrownWriter
from esper.simic.training.checkpoints.run_state import RunState
from esper.simic.training.contexts import drawn_contexts
from esper.simic.training.diagnostics import RunDiagnostics
from esper.simic.training.reporter import Reporter
from esper.simic.training.reward_ledger import rollback_penalty
from esper.simic.training.schedule import Schedule
from esper.simic.training.step import ControlThread
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
from esper.tamiyo.tracker import TrackerRules
from esper.tolaria.engine import WorkerEngine

__all__ = ["build_trainer"]

"""The best network of a run, in its directory."""


def build_trainer(
    setup: RunSetup, hub: TelemetryHub, engine: WorkerEngine, control: ControlThread
) -> VectorizedPPOTrainer:
    """Build the trainer of a run with its checkpoints and reports."""
    config, run, resumed = setup.job.training, setup.job.run, setup.resumed
    learner = setup.learner
    # Counters, anomalies and escalation continue too, so that a resumed log equals an unbroken one.
    state = RunState() if resumed is None else resumed.state
    store = CheckpointStore(
        hub.run_dir / CHECKPOINTS_DIRECTORY,
        copy_to=None if run.save_path is None else Path(run.save_path),
    )
    return VectorizedPPOTrainer(
        engine=engine,
        control=control,
        schedule=Schedule(config.n_episodes, config.max_epochs, state.rounds_completed),
        reporter=Reporter(
            hub=setup.worker.parts.get_hub(),
            config=config.telemetry,
            plateau_threshold_pp=config.plateau_threshold,
            improvement_threshold_pp=config.improvement_threshold,
            step_rules=StepRules(
                required_stable_steps=TrackerRules().steps_to_stabilize,
                penalty=rollback_penalty(config.governor.death_penalty),
            ),
            profiler=PhaseProfiler(run.profiler.phases),
            escalation=state.escalation,
        ),
        checkpointer=Checkpointer(
            store=store,
            job=setup.job,
            task=setup.task,
            run_id=hub.run_id,
            command=setup.command,
            hub=setup.worker.parts.get_hub(),
            controller=learner,
            every=run.checkpoint_every,
            is_judged_by_loss=setup.is_judged_by_loss,
            resumed=resumed,
            grown=GrownWriter(hub.run_dir / GROWN_FILE, partial(grown_header, setup)),
        ),
        diagnostics=RunDiagnostics(
            learner=learner,
            collect_layers=setup.worker.parts.collect_layers,
            check_stability=setup.worker.parts.check_stability,
        ),
        tracer=StepTracer(run.profiler, traces_directory(hub.run_dir, run.profiler)),
        contexts_of=partial(drawn_contexts, setup.task, config),
        state=state,
    )
