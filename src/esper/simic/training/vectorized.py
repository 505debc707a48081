"""The public entry point: puts engine, control, trainer and hub together and runs a job.

The names that tests and users may replace (`get_hub`, `RewardNormalizer`, `SharedBatchIterator`,
`PPOAgent`, `torch_amp`, `collect_per_layer_gradients`, `check_numerical_stability`) are looked up
here, when a run is put together.
"""

import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias

import torch
from torch import amp as torch_amp

from esper.leyline.config import (
    CompileMode,
    GovernorConfig,
    Job,
    ProfilerConfig,
    TelemetryConfig,
)
from esper.leyline.errors import TelemetryLostError, UnreadableFileError, UsageError
from esper.leyline.legality import ActionRules
from esper.leyline.payloads import CheckpointLoaded, LaneStalled
from esper.leyline.reports import BatchSummary
from esper.leyline.rewards import LossRewardConfig, RewardConfig
from esper.leyline.stages import LifecycleRules
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.leyline.tasks import TaskKind
from esper.nissa.hub import TelemetryHub, get_hub, use_hub
from esper.nissa.run_directory import (
    CHECKPOINTS_DIRECTORY,
    build_manifest,
    create_run_directory,
    read_manifest,
    traces_directory,
)
from esper.runtime.batches import Batch, SharedBatchIterator, batch_size_for, is_augmented
from esper.runtime.datasets import Part, TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset, registered_task
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.agent.ppo_config import ppo_config_from
from esper.simic.normalizers import ObservationNormalizer, RewardNormalizer
from esper.simic.seed_management import calculate_entropy_anneal_steps
from esper.simic.telemetry.gradients import (
    check_numerical_stability,
    collect_per_layer_gradients,
)
from esper.simic.telemetry.phases import PhaseProfiler
from esper.simic.telemetry.step_events import StepRules
from esper.simic.telemetry.traces import StepTracer, prepare_tracing
from esper.simic.training.arguments import DEFAULTS, layer_from_arguments
from esper.simic.training.batch_ops import Autocast, TrainRules
from esper.simic.training.checkpoint_store import CheckpointStore
from esper.simic.training.checkpointer import Checkpointer, LoadedRun
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.event_loop import run_event_loop
from esper.simic.training.grown import GrownWriter
from esper.simic.training.machine import (
    compile_mode_for,
    machine_kind,
    num_lanes_for,
    one_thread_per_worker,
    return_free_memory,
    share_one_heap,
    warm_up_math,
)
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.simic.training.policy_controller import PolicyController
from esper.simic.training.probes import RunProbes
from esper.simic.training.reporter import Reporter
from esper.simic.training.resuming import check_resumable, reopen_run, resolve_job
from esper.simic.training.reward_ledger import rollback_penalty
from esper.simic.training.run_setup import (
    RunSetup,
    amp_dtype,
    build_control,
    env_context,
    grown_header,
    host_device_types,
    started_event,
)
from esper.simic.training.run_state import RunState
from esper.simic.training.schedule import Schedule
from esper.simic.training.vectorized_trainer import ControlThread, VectorizedPPOTrainer
from esper.tamiyo.controllers.baselines import (
    PeriodicController,
    RandomController,
    WaitController,
)
from esper.tamiyo.controllers.heuristic import HeuristicController
from esper.tamiyo.controllers.protocol import Controller
from esper.tamiyo.features import observation_size
from esper.tamiyo.masks import ActionMasker
from esper.tamiyo.tracker import TrackerRules
from esper.tolaria.devices import resolve_device, resolve_env_devices
from esper.tolaria.engine import LaneEngine
from esper.tolaria.fences import build_fence, transfer_to
from esper.tolaria.lanes import Lane
from esper.tolaria.stopping import StopFlag
from esper.tolaria.supervisor import Watchdog, stop_signals, supervise

__all__ = [
    "GROWN_FILE",
    "Monitor",
    "TrainingHistory",
    "TrainingResult",
    "build_engine",
    "build_watchdog",
    "build_work",
    "load_data",
    "plan_job",
    "run_job",
    "train_ppo_vectorized",
]

Monitor: TypeAlias = Callable[[TelemetryHub, Callable[[str], None]], Coroutine[Any, Any, None]]
"""Shows a run: gets its hub and a way to ask for the run's end, and ends with the run's log."""

Table: TypeAlias = Mapping[str, object]
"""Some keys of a nested table of the configuration."""

POLICY_COMMAND: Final = "ppo"
VALIDATION_BATCH: Final = 256
CLOSE_TIMEOUT_S: Final = 5.0
GROWN_FILE: Final = "grown.pt"
"""The best network of a run, in its directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """What a run leaves behind."""

    agent: PPOAgent | None
    """None for a controller that does not learn."""
    history: tuple[BatchSummary, ...]
    """The last 1,000 rounds at most."""
    state: RunState
    run_dir: Path
    traces_dir: Path | None
    """Where torch traces are, if they were asked for."""
    data_note: str | None
    """What the operator has to know about the data."""


class TrainingHistory(list[BatchSummary]):
    """The summaries of a run's rounds, oldest first."""

    def __init__(self, result: TrainingResult) -> None:
        super().__init__(result.history)
        self.result = result
        """What else the run left behind: its directory, final state and notes."""


def run_job(
    job: Job,
    *,
    command: str | None = None,
    resumed: LoadedRun | None = None,
    watch: TextIO | None = None,
    monitors: Sequence[Monitor] = (),
    shutdown_event: threading.Event | None = None,
    ready_event: threading.Event | None = None,
) -> TrainingResult:
    """Run a checked job to its end, on a loop of its own.

    Args:
        job: what to run, and how.
        command: who decides: ppo, heuristic, random, wait or periodic; None lets the resumed run's
            controller decide, else ppo.
        resumed: the checkpoint to go on from.
        watch: where progress is printed; None prints none.
        monitors: what else shows it, beside the console and server that `job.run` asks for.
        shutdown_event: set it to stop the run at the next cancellation point.
        ready_event: set when everything is built and the first round begins.
    """
    stop = StopFlag(shutdown_event)
    monitors = [*_monitors_for(job, watch), *monitors]
    share_one_heap()
    with one_thread_per_worker(), stop_signals(stop):
        warm_up_math()
        plan = plan_job(job, _command(command, job, resumed), resumed, stop)
        prepare_tracing(job.run.profiler)
        return_free_memory()  # what loading data and drawing weights took for a moment
        run_dir, loaded = _open_run_directory(plan)
        hub = TelemetryHub(
            run_dir,
            run_id=read_manifest(run_dir).run_id,
            group=job.training.group_id,
            config=job.training.telemetry,
            fsync=job.run.fsync,
            fsync_interval_s=job.run.fsync_interval_ms / 1000,
        )
        with hub:
            if loaded is not None:
                hub.emit(loaded)
            state = run_event_loop(partial(_run, plan, hub, monitors, ready_event), plan.stop)
    learner = plan.learner
    return TrainingResult(
        agent=None if learner is None else learner.agent,
        history=state.history,
        state=state,
        run_dir=run_dir,
        traces_dir=traces_directory(run_dir, job.run.profiler),
        data_note=plan.dataset.note,
    )


def train_ppo_vectorized(
    *,
    task: str = DEFAULTS.task,
    preset: str | None = DEFAULTS.preset,
    n_episodes: int = DEFAULTS.n_episodes,
    n_envs: int = DEFAULTS.n_envs,
    max_epochs: int = DEFAULTS.max_epochs,
    slots: Sequence[str] = DEFAULTS.slots,
    max_seeds: int | None = DEFAULTS.max_seeds,
    seed: int = DEFAULTS.seed,
    group_id: str = DEFAULTS.group_id,
    device: str = DEFAULTS.device,
    devices: Sequence[str] | None = DEFAULTS.devices,
    data: str = DEFAULTS.data,
    data_dir: Path | str | None = DEFAULTS.data_dir,
    batch_size_per_env: int | None = DEFAULTS.batch_size_per_env,
    batch_mode: str | None = DEFAULTS.batch_mode,
    gpu_preload: bool = DEFAULTS.gpu_preload,
    gpu_preload_augment: bool = DEFAULTS.gpu_preload_augment,
    amp: bool = DEFAULTS.amp,
    amp_dtype: str = DEFAULTS.amp_dtype,
    compile_mode: str = DEFAULTS.compile_mode,
    host_lr: float | None = DEFAULTS.host_lr,
    seed_lr: float | None = DEFAULTS.seed_lr,
    max_grad_norm: float | None = DEFAULTS.max_grad_norm,
    lifecycle: LifecycleRules | Table = DEFAULTS.lifecycle,
    governor: GovernorConfig | Table = DEFAULTS.governor,
    lstm_hidden_dim: int = DEFAULTS.lstm_hidden_dim,
    feature_dim: int = DEFAULTS.feature_dim,
    lr: float = DEFAULTS.lr,
    clip_ratio: float = DEFAULTS.clip_ratio,
    gamma: float = DEFAULTS.gamma,
    gae_lambda: float = DEFAULTS.gae_lambda,
    ppo_updates_per_batch: int = DEFAULTS.ppo_updates_per_batch,
    recurrent_n_epochs: int = DEFAULTS.recurrent_n_epochs,
    target_kl: float | None = DEFAULTS.target_kl,
    policy_max_grad_norm: float = DEFAULTS.policy_max_grad_norm,
    weight_decay: float = DEFAULTS.weight_decay,
    value_coef: float = DEFAULTS.value_coef,
    value_coef_start: float | None = DEFAULTS.value_coef_start,
    value_warmup_batches: int = DEFAULTS.value_warmup_batches,
    entropy_coef: float = DEFAULTS.entropy_coef,
    entropy_coef_start: float | None = DEFAULTS.entropy_coef_start,
    entropy_coef_end: float | None = DEFAULTS.entropy_coef_end,
    entropy_coef_min: float = DEFAULTS.entropy_coef_min,
    entropy_anneal_episodes: int = DEFAULTS.entropy_anneal_episodes,
    entropy_coef_per_head: Mapping[str, float] = DEFAULTS.entropy_coef_per_head,
    total_train_steps: int | None = DEFAULTS.total_train_steps,
    reward_family: str = DEFAULTS.reward_family,
    reward_mode: str = DEFAULTS.reward_mode,
    reward: RewardConfig | Table = DEFAULTS.reward,
    loss_reward: LossRewardConfig | Table = DEFAULTS.loss_reward,
    plateau_threshold: float = DEFAULTS.plateau_threshold,
    improvement_threshold: float = DEFAULTS.improvement_threshold,
    telemetry: TelemetryConfig | Table = DEFAULTS.telemetry,
    telemetry_dir: Path | str = DEFAULTS.telemetry_dir,
    fsync: str = DEFAULTS.fsync,
    fsync_interval_ms: int = DEFAULTS.fsync_interval_ms,
    profiler: ProfilerConfig | Table = DEFAULTS.profiler,
    lanes: int | None = DEFAULTS.lanes,
    lane_deadline_s: float = DEFAULTS.lane_deadline_s,
    checkpoint_every: int = DEFAULTS.checkpoint_every,
    save_path: Path | str | None = DEFAULTS.save_path,
    resume_path: Path | str | None = DEFAULTS.resume_path,
    serve: str | None = DEFAULTS.serve,
    serve_token: str | None = DEFAULTS.serve_token,
    serve_origins: Sequence[str] = DEFAULTS.serve_origins,
    quiet: bool = DEFAULTS.quiet,
    watch: TextIO | None = None,
    ready_event: threading.Event | None = None,
    shutdown_event: threading.Event | None = None,
) -> tuple[PPOAgent, TrainingHistory]:
    """Train a policy that decides what grows; return its agent and the summaries of its rounds.

    There is a summary for each of the last 1,000 rounds; the log in `history.result.run_dir` has
    all of them. The parameters are the keys of `TrainingConfig` and `RunOptions`, where each is
    explained. What is passed is used; what is not given takes the checkpoint's value with
    `resume_path`, else the preset's, the task's or the configuration's own. A nested table may be
    given whole, as its struct, or in part, as a mapping: `reward={"rent_weight": 0.3}`.
    `n_episodes` counts rounds and `max_epochs` the steps of an episode.

    `watch` is a stream that progress is printed to, such as `sys.stdout`; with `serve`, such as
    "127.0.0.1:8765", there is a dashboard as well. `ready_event` is set when everything is built;
    set `shutdown_event` to stop the run at the next cancellation point.
    """
    job, resumed = resolve_job([("train_ppo_vectorized", layer_from_arguments(locals()))])
    result = run_job(
        job,
        command=POLICY_COMMAND,
        resumed=resumed,
        watch=watch,
        shutdown_event=shutdown_event,
        ready_event=ready_event,
    )
    assert result.agent is not None, "a policy has an agent"
    return result.agent, TrainingHistory(result)


def _monitors_for(job: Job, output: TextIO | None) -> tuple[Monitor, ...]:
    """Return the console and the server that a run was asked to have, if any."""
    if output is None and job.run.serve is None:
        return ()
    from esper.karn.monitor import build_monitor  # a run that is not watched loads no server

    return (build_monitor(job.run, output),)


def _command(asked: str | None, job: Job, resumed: LoadedRun | None) -> str:
    """Return who decides; a resumed run may not become another one."""
    if resumed is None:
        return asked or POLICY_COMMAND
    check_resumable(resumed.job.training, job.training)
    if asked not in (None, resumed.command):
        raise UsageError(
            f"--resume: the run was of {resumed.command!r} and {asked!r} was asked for; "
            "another controller is another run"
        )
    return resumed.command


def load_data(job: Job, stop: StopFlag) -> TensorDataset:
    """Load what a job trains on, from where it says."""
    request = DataRequest(
        source=job.training.data,
        data_dir=None if job.run.data_dir is None else Path(job.run.data_dir),
        check_cancelled=stop.checkpoint,
    )
    return load_dataset(job.training.task, request)


def plan_job(
    job: Job,
    command: str,
    resumed: LoadedRun | None,
    stop: StopFlag,
    dataset: TensorDataset | None = None,
) -> RunSetup:
    """Decide everything that can go wrong before anything is created.

    A resumed run lends its controller, be it to go on or to be evaluated. Data that
    were loaded for the same job may be lent as well.
    """
    config = job.training
    task = registered_task(config.task).spec
    device = resolve_device(config.device)
    env_devices = resolve_env_devices(config.devices, policy_device=device, n_envs=config.n_envs)
    rules = ActionRules(
        slot_ids=config.slots,
        topology=task.host.topology,
        lifecycle=config.lifecycle,
        max_seeds=config.max_seeds,
    )
    if resumed is None:
        controller = _build_controller(job, command, rules, device, None)
    else:
        controller = _restored_controller(job, command, rules, device, resumed)
    stop.checkpoint()
    dataset = load_data(job, stop) if dataset is None else dataset
    batch_size = batch_size_for(task, config, len(dataset.train))
    iterator = partial(
        SharedBatchIterator,
        dataset,
        n_envs=config.n_envs,
        seed=config.seed,
        devices=env_devices,
        preload=config.gpu_preload,
        transfer=transfer_to,
        check_cancelled=stop.checkpoint,
    )
    return RunSetup(
        job=job,
        task=task,
        command=command,
        device=device,
        fences=tuple(build_fence(env_devices[i % len(env_devices)]) for i in range(config.n_envs)),
        dataset=dataset,
        train_batches=iterator(
            batch_size_per_env=batch_size,
            mode=config.batch_mode or task.batch_mode,
            max_batches=task.max_train_batches,
            augment=is_augmented(dataset, config),
        ),
        val_batches=iterator(batch_size_per_env=VALIDATION_BATCH, part=Part.VAL),
        test_batches=partial(iterator, batch_size_per_env=VALIDATION_BATCH, part=Part.TEST),
        rules=rules,
        controller=controller,
        resumed=resumed,
        stop=stop,
    )


def _build_controller(
    job: Job, command: str, rules: ActionRules, device: torch.device, resumed: LoadedRun | None
) -> Controller:
    config = job.training
    match command:
        case "wait":
            return WaitController(rules)
        case "random":
            return RandomController(rules, config.seed)
        case "periodic":
            return PeriodicController(rules)
        case "heuristic":
            return HeuristicController(rules)
    agent = _build_agent(job, device, resumed)
    mode = compile_mode_for(config.compile_mode, device)
    if mode is not CompileMode.OFF:
        agent.network.compile_step(mode.value)
    policy = PolicyController(
        agent=agent,
        obs_normalizer=ObservationNormalizer(observation_size(len(config.slots)), device),
        reward_normalizer=RewardNormalizer(device),
        slot_ids=config.slots,
        seed=config.seed,
    )
    if resumed is not None and resumed.controller is not None:
        policy.load_state_dict(resumed.controller)
    return policy


def _restored_controller(
    job: Job, command: str, rules: ActionRules, device: torch.device, resumed: LoadedRun
) -> Controller:
    try:
        controller = _build_controller(job, command, rules, device, resumed)
        if isinstance(controller, PolicyController):
            stored = resumed.job.training
            controller.agent.check_fits(n_envs=stored.n_envs, num_steps=stored.max_epochs)
    except UsageError:
        raise
    # There is no telling what is raised about contents that somebody else wrote.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UnreadableFileError(
            resumed.path, f"what it holds is not the state of this run: {reason}"
        ) from None
    return controller


def _build_agent(job: Job, device: torch.device, resumed: LoadedRun | None) -> PPOAgent:
    config = job.training
    if resumed is not None:
        return PPOAgent.load(resumed.path, device=device)
    source = stream_seed(config.seed, purpose=StreamPurpose.POLICY_INIT)
    anneal = calculate_entropy_anneal_steps(config.entropy_anneal_episodes, config.n_envs)
    return PPOAgent.build(
        ppo_config_from(
            config, obs_dim=observation_size(len(config.slots)), entropy_anneal_updates=anneal
        ),
        generator=torch.Generator().manual_seed(source),
        device=device,
    )


def _open_run_directory(plan: RunSetup) -> tuple[Path, CheckpointLoaded | None]:
    """Create the run's directory, or take a resumed run's back to its checkpoint."""
    telemetry_dir = Path(plan.job.run.telemetry_dir)
    if plan.resumed is not None:
        return reopen_run(plan.resumed, telemetry_dir, plan.job.training.n_episodes)
    manifest = build_manifest(
        plan.job,
        command=plan.command,
        machine_kind=machine_kind(
            plan.device, compile_mode_for(plan.job.training.compile_mode, plan.device)
        ),
        data_source=plan.dataset.origin.value,
    )
    return create_run_directory(telemetry_dir, manifest), None


async def _run(
    plan: RunSetup,
    hub: TelemetryHub,
    monitors: Sequence[Monitor],
    ready_event: threading.Event | None,
) -> RunState:
    # Set here, as a loop on a thread of its own knows nothing of the caller's hub.
    with use_hub(hub):
        return await _run_trainer(plan, hub, monitors, ready_event)


async def _run_trainer(
    plan: RunSetup,
    hub: TelemetryHub,
    monitors: Sequence[Monitor],
    ready_event: threading.Event | None,
) -> RunState:
    lane = Lane("control")
    engine = build_engine(plan)
    trainer = _build_trainer(plan, hub, engine, lane)
    watchdog = build_watchdog(plan, engine, lane, hub.emit, "operational.jsonl")
    if ready_event is not None:
        ready_event.set()
    try:
        return await supervise(
            partial(trainer.run, started_event(plan)),
            background=[partial(monitor, hub, plan.stop.set) for monitor in monitors],
            watchdog=watchdog,
            close_log=partial(_close_log, hub),
        )
    finally:
        await engine.close()
        lane.close(CLOSE_TIMEOUT_S)


def _close_log(hub: TelemetryHub) -> None:
    """Write everything that was emitted and end the live feed."""
    with suppress(TelemetryLostError):  # leaving the hub's own `with` raises it again
        hub.close()


def build_engine(
    plan: RunSetup, work: TrainingWork | None = None
) -> LaneEngine[ParallelEnvState, Batch]:
    """Start the lanes that a plan's envs live on; without other work, they do the plan's own."""
    config = plan.job.training
    return LaneEngine(
        num_envs=config.n_envs,
        num_lanes=num_lanes_for(plan.job.run.lanes, config.n_envs),
        work=build_work(plan) if work is None else work,
        batches=partial(_train_pass, plan.train_batches),
        stop=plan.stop,
    )


def build_watchdog(
    plan: RunSetup,
    engine: LaneEngine[Any, Any],
    control: Lane,
    report: Callable[[LaneStalled], object],
    reported_in: str,
) -> Watchdog:
    """Build what notices that one of a plan's threads hangs."""
    return Watchdog(
        lanes=partial(_threads_of, engine, control),
        env_ids_of=engine.env_ids_of,
        deadline_s=plan.job.run.lane_deadline_s,
        stop=plan.stop,
        report=report,
        reported_in=reported_in,
    )


def build_work(plan: RunSetup) -> TrainingWork:
    """Build what is done to a plan's envs."""
    config = plan.job.training
    return TrainingWork(
        context=env_context(plan),
        rules=TrainRules(
            max_grad_norm=config.max_grad_norm,
            gradient_stride=config.telemetry.gradient_stride,
            autocast=_autocast_of(plan),
        ),
        action_rules=plan.rules,
        masker=ActionMasker(plan.rules),
        validation=partial(plan.val_batches.batches, round=0, step=0),
        testing=partial(_test_pass, plan),
    )


def _build_trainer(
    plan: RunSetup, hub: TelemetryHub, engine: LaneEngine[Any, Any], lane: Lane
) -> VectorizedPPOTrainer:
    config, run, resumed = plan.job.training, plan.job.run, plan.resumed
    learner = plan.learner
    state = RunState() if resumed is None else resumed.state
    store = CheckpointStore(
        hub.run_dir / CHECKPOINTS_DIRECTORY,
        copy_to=None if run.save_path is None else Path(run.save_path),
    )
    return VectorizedPPOTrainer(
        engine=engine,
        control=ControlThread(build_control(plan), lane),
        schedule=Schedule(config.n_episodes, config.max_epochs, state.rounds_completed),
        reporter=Reporter(
            hub=get_hub(),
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
            job=plan.job,
            run_id=hub.run_id,
            command=plan.command,
            hub=get_hub(),
            controller=learner,
            every=run.checkpoint_every,
            is_judged_by_loss=plan.task.kind is TaskKind.LANGUAGE_MODEL,
            resumed=resumed,
            grown=GrownWriter(hub.run_dir / GROWN_FILE, grown_header(plan)),
        ),
        probes=RunProbes(
            learner=learner,
            fences=plan.fences,
            collect_layers=collect_per_layer_gradients,
            check_stability=check_numerical_stability,
        ),
        tracer=StepTracer(run.profiler, traces_directory(hub.run_dir, run.profiler)),
        state=state,
    )


def _train_pass(
    batches: SharedBatchIterator, round_index: int, step: int
) -> Iterator[Sequence[Batch]]:
    return batches.batches(round=round_index, step=step)


def _test_pass(plan: RunSetup) -> Iterator[Sequence[Batch]]:
    return plan.test_batches().batches(round=0, step=0)


def _threads_of(engine: LaneEngine[Any, Any], lane: Lane) -> tuple[Lane, ...]:
    return (*engine.lanes, lane)


def _autocast_of(plan: RunSetup) -> Autocast:
    """Return what makes the precision context of a host's forward pass."""
    dtype = amp_dtype(plan)
    return nullcontext if dtype is None else partial(_autocast, host_device_types(plan), dtype)


@contextmanager
def _autocast(device_types: Sequence[str], dtype: torch.dtype) -> Iterator[None]:
    """Enter autocast for every kind of device that hosts live on; it heeds none but its own."""
    with ExitStack() as stack:
        for device_type in device_types:
            stack.enter_context(torch_amp.autocast(device_type, dtype=dtype))
        yield
