"""Env creation: a new host each round, with its optimizers, governor and tracker."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import torch
from torch import nn

from esper.kasmina.hosts import build_host
from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.optimizers import SeedOptimizers, build_sgd
from esper.kasmina.schedules import ScheduledOptimizer
from esper.leyline.config import TrainingConfig
from esper.leyline.episodes import episode_id_of
from esper.leyline.payloads import Payload
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.leyline.tasks import HostSpec, TaskSpec
from esper.simic.training.contexts import context_of, sterile_seeds_in
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.tamiyo.tracker import SignalTracker
from esper.tolaria.fences import Fence
from esper.tolaria.governor import Governor

__all__ = [
    "EnvFactoryContext",
    "build_model",
    "configure_slot_telemetry",
    "create_env_state",
    "make_telemetry_callback",
]

HOST_SIDE: Final = torch.device("cpu")
"""Parameters are initialized on the CPU for every target device, for identical bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvFactoryContext:
    """Settings shared by all envs of a run."""

    config: TrainingConfig
    task: TaskSpec
    build_host: Callable[[TaskSpec, torch.Generator], nn.Module] | None
    """None builds the host from the task's description."""
    fences: Mapping[int, Fence]
    """By env, for the whole run."""
    uses_scaler: bool
    """float16 needs gradient scaling."""
    run_seed: int

    def host_spec(self, round_index: int, env_id: int) -> HostSpec:
        """Return the description of an env's host, which its context may change."""
        return self.task.host_in(context_of(self.task, self.config, round_index, env_id))


def create_env_state(context: EnvFactoryContext, round_index: int, env_id: int) -> ParallelEnvState:
    """Build one env of a round from its own random streams."""
    config, task, fence = context.config, context.task, context.fences[env_id]
    drawn = context_of(task, config, round_index, env_id)
    model = build_model(context, round_index, env_id).to(fence.device)
    host_lr = config.host_lr or task.host_lr
    host_optimizer = build_sgd(
        model.host_parameters(),
        lr=host_lr,
        momentum=task.momentum,
        weight_decay=task.host_weight_decay,
    )
    # Lanes never emit: what happens in slots waits here and leaves with the step's outcome, so that
    # events come in env order whichever lane is faster.
    outbox: list[Payload] = []
    configure_slot_telemetry(model, make_telemetry_callback(outbox))
    return ParallelEnvState(
        env_idx=env_id,
        round_index=round_index,
        episode_id=episode_id_of(round_index, env_id, num_envs=config.n_envs),
        slot_ids=model.slot_config.slot_ids,
        device=fence.device,
        fence=fence,
        model=model,
        host_optimizer=host_optimizer,
        host_schedule=ScheduledOptimizer(
            optimizer=host_optimizer,
            schedule=config.host_schedule,
            lr=host_lr,
            num_steps=config.max_epochs,
        ),
        seed_optimizers=SeedOptimizers(lr=config.seed_lr or task.seed_lr, momentum=task.momentum),
        scaler=torch.amp.GradScaler(fence.device.type) if context.uses_scaler else None,
        # ln(classes) is the cross-entropy of guessing at random.
        governor=Governor(model, config.governor, math.log(task.host.num_classes)),
        signal_tracker=SignalTracker(),
        seed_generator=_generator(context, StreamPurpose.SEED_INIT, round_index, env_id),
        outbox=outbox,
        sterile_seeds=sterile_seeds_in(drawn, config, round_index, env_id),
    )


def build_model(context: EnvFactoryContext, round_index: int, env_id: int) -> MorphogeneticModel:
    """Build a host with its slots, without using torch's global generator."""
    generator = _generator(context, StreamPurpose.INIT, round_index, env_id)
    spec = context.host_spec(round_index, env_id)
    host: nn.Module
    if context.build_host is None:
        host = build_host(spec, generator)
    else:
        host = context.build_host(msgspec.structs.replace(context.task, host=spec), generator)
    set_dropout = getattr(host, "set_dropout_generator", None)
    if set_dropout is not None:
        # Dropout masks are drawn on the device of the features.
        device = context.fences[env_id].device
        set_dropout(_generator(context, StreamPurpose.DROPOUT, round_index, env_id, device))
    return MorphogeneticModel(host, context.config.slots, context.config.lifecycle)


def make_telemetry_callback(outbox: list[Payload]) -> Callable[[Payload], None]:
    """Return the callback for slot events: they go to the env's outbox, sent with its outcome."""
    return outbox.append


def configure_slot_telemetry(
    model: MorphogeneticModel, callback: Callable[[Payload], None]
) -> None:
    """Set the event callback of every slot of a model."""
    model.set_emit(callback)


def _generator(
    context: EnvFactoryContext,
    purpose: StreamPurpose,
    round_index: int,
    env_id: int,
    device: torch.device = HOST_SIDE,
) -> torch.Generator:
    seed = stream_seed(context.run_seed, purpose=purpose, round=round_index, env=env_id)
    return torch.Generator(device).manual_seed(seed)
