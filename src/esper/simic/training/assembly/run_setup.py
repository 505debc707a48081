"""The setup of a run: everything is decided that can go wrong, and nothing is created yet."""

from dataclasses import dataclass

import torch

from esper.leyline.config import Job
from esper.leyline.heap import return_free_memory
from esper.leyline.tasks import TaskKind, TaskSpec
from esper.runtime.datasets import TensorDataset
from esper.runtime.tasks import registered_task
from esper.simic.telemetry.traces import prepare_tracing
from esper.simic.training.assembly.controllers import build_controller
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.worker_setup import WorkerSetup, action_rules, prepare_worker
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.checkpoints.grown import GrownHeader
from esper.simic.training.checkpoints.origins import load_origin
from esper.simic.training.contexts import context_of
from esper.simic.training.policy_controller import PolicyController
from esper.tamiyo.controllers.protocol import Controller
from esper.tolaria.devices import resolve_device
from esper.tolaria.stopping import StopFlag

__all__ = ["RunSetup", "grown_header", "prepare_run"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSetup:
    """A job with everything that is decided before anything is created."""

    worker: WorkerSetup
    """The half that envs are built from."""
    command: str
    device: torch.device
    """The policy's."""
    controller: Controller
    resumed: LoadedRun | None
    begun_from: LoadedRun | None
    """Whose policy a new one begins with."""

    @property
    def job(self) -> Job:
        """Return the job."""
        return self.worker.job

    @property
    def task(self) -> TaskSpec:
        """Return the job's task."""
        return self.worker.task

    @property
    def learner(self) -> PolicyController | None:
        """Return the controller if it is one that learns."""
        return self.controller if isinstance(self.controller, PolicyController) else None

    @property
    def is_judged_by_loss(self) -> bool:
        """Return whether networks are ranked by lowest loss instead of highest accuracy."""
        return self.task.kind is TaskKind.LANGUAGE_MODEL


def prepare_run(
    job: Job,
    command: str,
    resumed: LoadedRun | None,
    stop: StopFlag,
    *,
    parts: RunParts,
    dataset: TensorDataset | None = None,
) -> RunSetup:
    """Decide everything that can go wrong before anything is created.

    Args:
        job: the job to run.
        command: the controller.
        resumed: the run whose controller continues, or is evaluated.
        stop: checked before data are loaded.
        parts: what the run is put together from.
        dataset: the job's data, if already loaded.
    """
    # Devices and checkpoint before the data: a typing mistake should not cost a download.
    device = resolve_device(job.training.device)
    task = registered_task(job.training.task).spec
    begun_from = load_origin(job, command) if resumed is None else None
    controller = build_controller(
        job,
        command,
        rules=action_rules(job, task),
        device=device,
        resumed=resumed,
        begun_from=begun_from,
        parts=parts,
    )
    stop.checkpoint()
    prepare_tracing(job.run.profiler)
    worker = prepare_worker(job, stop, parts=parts, dataset=dataset)
    return_free_memory()  # what loading data and drawing weights took for a moment
    return RunSetup(
        worker=worker,
        command=command,
        device=device,
        controller=controller,
        resumed=resumed,
        begun_from=begun_from,
    )


def grown_header(setup: RunSetup, round_index: int, env_id: int) -> GrownHeader:
    """Return what has to be known of the network that an env grows."""
    config, dataset = setup.job.training, setup.worker.dataset
    scale, inputs = dataset.pixel_scale, dataset.train.inputs
    drawn = context_of(setup.task, config, round_index, env_id)
    factor = 1.0 if drawn is None else drawn.input_scale
    # A host that a task builds itself has no description from which it could be built again.
    is_custom = registered_task(config.task).build_host is not None
    return GrownHeader(
        task=config.task,
        host=None if is_custom else setup.task.host_in(drawn),
        slots=config.slots,
        lifecycle=config.lifecycle,
        pixel_mean=None if scale is None else scale.mean,
        pixel_std=None if scale is None else tuple(value / factor for value in scale.std),
        input_shape=tuple(inputs.shape[1:]),
        takes_tokens=scale is None and not inputs.is_floating_point(),
    )
