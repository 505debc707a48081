"""Plans: a job with everything decided that can go wrong, and what follows from a plan alone."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from esper import __version__
from esper.leyline.config import AmpDtype, Job
from esper.leyline.legality import ActionRules
from esper.leyline.payloads import TrainingStarted
from esper.leyline.tasks import TaskSpec
from esper.leyline.telemetry import SCHEMA_VERSION
from esper.runtime.batches import SharedBatchIterator
from esper.runtime.datasets import TensorDataset
from esper.runtime.tasks import registered_task
from esper.simic.rewards.scheme import scheme_of
from esper.simic.training.checkpointer import LoadedRun
from esper.simic.training.control import Control
from esper.simic.training.env_factory import EnvFactoryContext, build_model
from esper.simic.training.grown import GrownHeader
from esper.simic.training.machine import num_lanes_for
from esper.simic.training.policy_controller import PolicyController
from esper.tamiyo.controllers.protocol import Controller
from esper.tamiyo.features import FeatureExtractor
from esper.tamiyo.masks import ActionMasker
from esper.tolaria.fences import Fence
from esper.tolaria.stopping import StopFlag

__all__ = [
    "RunSetup",
    "amp_dtype",
    "build_control",
    "env_context",
    "grown_header",
    "host_device_types",
    "started_event",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSetup:
    """A job with everything that is decided before anything is created."""

    job: Job
    task: TaskSpec
    command: str
    device: torch.device
    fences: tuple[Fence, ...]
    dataset: TensorDataset
    train_batches: SharedBatchIterator
    val_batches: SharedBatchIterator
    test_batches: Callable[[], SharedBatchIterator]
    """Makes what only an evaluation walks."""
    rules: ActionRules
    controller: Controller
    resumed: LoadedRun | None
    stop: StopFlag

    @property
    def learner(self) -> PolicyController | None:
        """Return the controller if it is one that learns."""
        return self.controller if isinstance(self.controller, PolicyController) else None


def env_context(plan: RunSetup) -> EnvFactoryContext:
    """Return what the envs of a plan are built from."""
    config = plan.job.training
    return EnvFactoryContext(
        config=config,
        task=plan.task,
        build_host=registered_task(config.task).build_host,
        fences=plan.fences,
        uses_scaler=amp_dtype(plan) is torch.float16,
        run_seed=config.seed,
    )


def build_control(plan: RunSetup) -> Control:
    """Build what stands between a plan's envs and its controller."""
    config = plan.job.training
    return Control(
        controller=plan.controller,
        scheme=scheme_of(config, plan.task),
        rules=plan.rules,
        extractor=FeatureExtractor(config.slots, config.max_epochs),
        masker=ActionMasker(plan.rules),
        num_envs=config.n_envs,
        num_steps=config.max_epochs,
        death_penalty=config.governor.death_penalty,
        success_accuracy_pct=plan.task.success_accuracy_pct,
        updates_per_round=config.ppo_updates_per_batch,
        check_cancelled=plan.stop.checkpoint,
    )


def amp_dtype(plan: RunSetup) -> torch.dtype | None:
    """Return the precision that hosts run in under autocast, or None for full precision."""
    config = plan.job.training
    if not config.amp or config.amp_dtype is AmpDtype.OFF:
        return None
    if config.amp_dtype is AmpDtype.AUTO:
        has_bfloat16 = "cuda" not in host_device_types(plan) or torch.cuda.is_bf16_supported()
        return torch.bfloat16 if has_bfloat16 else torch.float16
    return torch.float16 if config.amp_dtype is AmpDtype.FLOAT16 else torch.bfloat16


def host_device_types(plan: RunSetup) -> tuple[str, ...]:
    """Return the kinds of devices that hosts live on, each once."""
    return tuple(sorted({fence.device.type for fence in plan.fences}))


def grown_header(plan: RunSetup) -> GrownHeader:
    """Return what has to be known of the networks that a plan grows."""
    config, scale = plan.job.training, plan.dataset.pixel_scale
    is_custom = registered_task(config.task).build_host is not None
    return GrownHeader(
        task=config.task,
        host=None if is_custom else plan.task.host,
        slots=config.slots,
        lifecycle=config.lifecycle,
        pixel_mean=None if scale is None else scale.mean,
        pixel_std=None if scale is None else scale.std,
    )


def started_event(plan: RunSetup) -> TrainingStarted:
    """Return what a run says of itself when it begins."""
    config, run = plan.job.training, plan.job.run
    dtype = amp_dtype(plan)
    return TrainingStarted(
        esper_version=__version__,
        schema_version=SCHEMA_VERSION,
        controller=plan.command,
        task=config.task,
        preset=config.preset,
        data_source=plan.dataset.origin.value,
        topology=plan.task.host.topology.value,
        host_params=build_model(env_context(plan), 0, 0).num_host_params,
        slot_ids=config.slots,
        num_rounds=config.n_episodes,
        num_envs=config.n_envs,
        num_steps=config.max_epochs,
        seed=config.seed,
        reward_family=config.reward_family.value,
        reward_mode=config.reward_mode.value,
        telemetry_level=config.telemetry.level,
        policy_params=None if plan.learner is None else _num_params(plan.learner.agent.network),
        policy_device=str(plan.device),
        env_devices=tuple(sorted({str(fence.device) for fence in plan.fences})),
        num_lanes=num_lanes_for(run.lanes, config.n_envs),
        amp_dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        compile_mode=config.compile_mode.value,
        torch_version=str(torch.__version__),
        resumed_from_round=None,
    )


def _num_params(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
