"""Building the engine of a run: which kind of workers it has, how many, and how they start."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from esper.kasmina.blueprints import is_installed_blueprint
from esper.leyline.config import DataSource, EngineKind, Job
from esper.leyline.errors import ConfigError
from esper.leyline.workers import WorkerIdentity, WorkerSpec, identity_difference
from esper.runtime.sources import DataOrigin
from esper.runtime.tasks import is_installed_task
from esper.simic.training.assembly.machine import num_lanes_for
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.worker_assembly import Topologies, build_worker, env_context
from esper.simic.training.assembly.worker_identity import worker_identity
from esper.simic.training.assembly.worker_setup import (
    WorkerSetup,
    host_device_types,
)
from esper.simic.training.env_factory import build_model
from esper.simic.training.ray_worker import RAY_CLUSTER
from esper.tolaria.engine import Connection, WorkerEngine
from esper.tolaria.fork_server import ForkServer
from esper.tolaria.process_port import ProcessPort
from esper.tolaria.ray_port import RayPort
from esper.tolaria.remote_port import RemotePort
from esper.tolaria.replay import start_ports
from esper.tolaria.stopping import StopFlag

__all__ = ["EngineChoice", "build_engine", "choose_engine"]

WORKER_TARGET: Final = "esper.simic.training.worker_process:serve"
MIN_ENV_STEPS: Final = 200
"""Below this, starting processes takes longer than they save."""
MAX_HOST_PARAMS: Final = 1_000_000
"""Above this, nearly all time is spent in torch, where threads run in parallel too."""

_FORK_SERVER = ForkServer(WORKER_TARGET)
"""One for all runs of this process, so that later runs find torch imported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineChoice:
    """The kind of a run's workers, how many there are, and why."""

    kind: EngineKind
    workers: int
    lanes: int
    """Threads per worker."""
    reason: str

    def __str__(self) -> str:
        if self.kind is EngineKind.THREADS:
            return f"threads, {self.lanes} lanes ({self.reason})"
        return f"{self.kind.value}, {self.workers} workers ({self.reason})"


def choose_engine(setup: WorkerSetup) -> EngineChoice:
    """Choose the kind of workers: as requested, else what is fastest for this job."""
    asked = setup.job.run.engine
    obstacle = _obstacle(setup)
    if asked is EngineKind.THREADS:
        return _threads(setup, "as requested")
    if asked is not EngineKind.AUTO:
        if obstacle is not None:
            raise ConfigError(f"run.engine = {asked.value!r}: {obstacle}; use --engine threads")
        # `auto` avoids this: it chooses threads where a trace is asked for.
        blind = "; --torch-profiler traces control only, not the workers"
        return _workers(
            setup, asked, "as requested" + (blind if setup.job.run.profiler.torch else "")
        )
    reason = obstacle or _reason_for_threads(setup)
    if reason is not None:
        return _threads(setup, reason)
    return _workers(setup, EngineKind.PROCESSES, "small hosts share one interpreter badly")


def _obstacle(setup: WorkerSetup) -> str | None:
    """Return why envs cannot live in another process; None if they can."""
    task, default = setup.job.training.task, RunParts()
    replaced = [
        name
        for name in ("batch_iterator", "autocast")
        if getattr(setup.parts, name) is not getattr(default, name)
    ]
    if replaced:
        return f"{replaced[0]} was replaced, which does not reach other processes"
    if not is_installed_task(task):
        return (
            f"task {task!r} was registered in this process only; install it as a plug-in "
            "(entry point group esper.tasks) to have it in others"
        )
    for name in setup.job.training.blueprints:
        if not is_installed_blueprint(name):
            return (
                f"blueprint {name!r} was registered in this process only; install it as a plug-in "
                "(entry point group esper.blueprints) to have it in others"
            )
    return None


def _reason_for_threads(setup: WorkerSetup) -> str | None:
    """Return why threads are the better choice for a job; None if they are not."""
    config, run = setup.job.training, setup.job.run
    num_env_steps = config.n_episodes * config.n_envs * config.max_epochs
    if setup.probe is not None:
        return "the steps of a probe are shorter than messages about them"
    if host_device_types(setup) != ("cpu",):
        return "hosts are not on the CPU"
    if min(config.n_envs, os.cpu_count() or 1) < 2:
        return "one env or one core"
    if run.profiler.torch:
        return "the torch profiler traces this process only"
    if num_env_steps < MIN_ENV_STEPS:
        return f"{num_env_steps} env-steps are too few to start processes for"
    num_params = build_model(env_context(setup), 0, 0).num_host_params
    if num_params > MAX_HOST_PARAMS:
        return f"hosts with {num_params:,} parameters keep threads busy"
    return None


def _threads(setup: WorkerSetup, reason: str) -> EngineChoice:
    asked, num_envs = setup.job.run.lanes, setup.job.training.n_envs
    if asked is None and setup.probe is not None:
        # A probe is pure Python: further lanes would only wait for the interpreter lock.
        asked = 1
    return EngineChoice(
        kind=EngineKind.THREADS,
        workers=1,
        lanes=num_lanes_for(asked, num_envs),
        reason=reason,
    )


def _workers(setup: WorkerSetup, kind: EngineKind, reason: str) -> EngineChoice:
    run, num_envs = setup.job.run, setup.job.training.n_envs
    if kind is EngineKind.RAY:
        RAY_CLUSTER.connect()
    num_cores = RAY_CLUSTER.num_cpus() if kind is EngineKind.RAY else os.cpu_count() or 1
    workers = min(num_envs, run.workers or num_cores)
    return EngineChoice(
        kind=kind,
        workers=workers,
        lanes=min(run.lanes or 1, -(-num_envs // workers)),
        reason=reason,
    )


def build_engine(
    setup: WorkerSetup, topologies: Topologies | None = None, choice: EngineChoice | None = None
) -> WorkerEngine:
    """Start the workers that a run's envs live on.

    Args:
        setup: the run's envs.
        topologies: networks that envs are built with instead of an empty host.
        choice: the kind of workers, if already chosen.
    """
    choice, num_envs = choice or choose_engine(setup), setup.job.training.n_envs
    planted = topologies or {}
    if choice.kind is EngineKind.THREADS:
        worker = build_worker(setup, range(num_envs), lanes=choice.lanes, topologies=planted)
        # A trace of one step must not contain a part of the next one.
        return WorkerEngine(
            [worker], num_envs=num_envs, is_queued_ahead=not setup.job.run.profiler.torch
        )
    make_port = _process_port if choice.kind is EngineKind.PROCESSES else _ray_port
    # Computed once from the driver's own data, and compared with what every worker has loaded.
    identity = worker_identity(setup)
    starts = [
        partial(_start, make_port, spec, setup.stop, identity)
        for spec in _specs(setup, choice, planted)
    ]
    return WorkerEngine(start_ports(starts), num_envs=num_envs)


def _specs(setup: WorkerSetup, choice: EngineChoice, topologies: Topologies) -> "list[WorkerSpec]":
    job, num_envs = _job_for_workers(setup), setup.job.training.n_envs
    return [
        WorkerSpec(
            index=index,
            job=job,
            env_ids=tuple(range(index, num_envs, choice.workers)),
            lanes=choice.lanes,
            topologies=dict(topologies),
        )
        for index in range(choice.workers)
    ]


def _job_for_workers(setup: WorkerSetup) -> Job:
    """Return the job as workers need it.

    With the source of data that the driver has found, a data directory that does not depend on
    where a worker is started, and without secrets.
    """
    is_synthetic = setup.dataset.origin is DataOrigin.SYNTHETIC
    source = DataSource.SYNTHETIC if is_synthetic else DataSource.REAL
    job = setup.job
    return msgspec.structs.replace(
        job,
        training=msgspec.structs.replace(job.training, data=source),
        run=msgspec.structs.replace(
            job.run,
            data_dir=None if job.run.data_dir is None else os.path.abspath(job.run.data_dir),
            serve=None,
            serve_token=None,
            resume_path=None,
        ),
    )


def _process_port(spec: WorkerSpec, stop: StopFlag) -> ProcessPort:
    return ProcessPort(spec, _FORK_SERVER, stop)


def _ray_port(spec: WorkerSpec, stop: StopFlag) -> RayPort:
    return RayPort(spec, RAY_CLUSTER, stop)


def _start(
    make_port: Callable[[WorkerSpec, StopFlag], RemotePort],
    spec: WorkerSpec,
    stop: StopFlag,
    expected: WorkerIdentity,
) -> Connection:
    """Start a worker and wait until it is ready; refuse one that would compute other results."""
    port = make_port(spec, stop)
    try:
        difference = identity_difference(expected, port.ready())
        if difference is not None:
            raise ConfigError(
                f"worker {spec.index} would compute other results: {difference}; give it the same "
                "software, hardware and data"
            )
    except BaseException:
        port.close()
        raise
    return port
