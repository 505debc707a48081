"""Per-batch work of a lane: train, validate, measure gradients; never synchronizes with a device.

Results stay on the device until the pass is over and its fence has completed.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn

from esper.kasmina.model import Incubation, MorphogeneticModel
from esper.kasmina.optimizers import (
    clip_gradients,
    forget_gradients,
    gradients_of,
    sgd_step,
)
from esper.kasmina.trial import keep_what_helps
from esper.leyline.reports import GradientReading, SeedReport
from esper.leyline.signals import TrainingSignals
from esper.leyline.stages import Stage
from esper.runtime.batches import Batch
from esper.simic.telemetry.gradients import (
    gradient_norms,
    gradient_ratio,
    materialize_facts,
    reading_of,
    smoothed,
)
from esper.simic.training.parallel_env_state import GradientSample, ParallelEnvState
from esper.tamiyo.features import ActionFeedback, FeatureExtractor, ObservationBatch

__all__ = [
    "Autocast",
    "TrainRules",
    "backpropagate",
    "batch_signals_to_features",
    "collect_gradient_telemetry_for_batch",
    "loss_and_correct",
    "materialize_gradient_readings",
    "materialize_train_pass",
    "process_train_batch",
    "process_trial",
    "process_val_batch",
    "try_seeds",
]

MEASURED_STAGES: Final = frozenset({Stage.TRAINING, Stage.BLENDING, Stage.HOLDING})
"""Stages of the seeds whose gates or features use their gradients."""

Autocast: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Creates the autocast context of one forward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRules:
    """Training settings shared by all envs of a run."""

    max_grad_norm: float | None
    gradient_stride: int
    autocast: Autocast


def loss_and_correct(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean cross-entropy and number of correct predictions, over classes or tokens."""
    flat, wanted = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    # In float32 even under autocast: the log-sum-exp of half-precision logits loses too much.
    loss = nn.functional.cross_entropy(flat.float(), wanted)
    return loss, (flat.argmax(-1) == wanted).sum()


def process_train_batch(
    env: ParallelEnvState, batch: Batch, batch_index: int, rules: TrainRules
) -> None:
    """Take one optimizer step on host and seeds."""
    with env.fence.entered(is_training=True):
        env.fence.await_transfers()
        # The batch was allocated on the default stream; without this the allocator could hand its
        # memory out again while this stream still reads it.
        env.fence.record_stream(batch.inputs, batch.targets)
        forget_gradients(env.host_optimizer)
        env.seed_optimizers.zero_grad()
        scale = _unscaled if env.scaler is None else env.scaler.scale
        loss, correct = backpropagate(env.model, batch, autocast=rules.autocast, scale=scale)
        _unscale_gradients(env)
        # Between backward and step, and before clipping: gates look at the true gradients.
        if batch_index % rules.gradient_stride == 0:
            collect_gradient_telemetry_for_batch(env)
        _clip_and_step(env, rules.max_grad_norm)
        env.train.add(loss, correct, batch.targets.numel())
    if env.model.is_incubating:
        env.last_batches.append(batch)


def _unscaled(loss: Tensor) -> Tensor:
    return loss


def backpropagate(
    model: MorphogeneticModel,
    batch: Batch,
    *,
    autocast: Autocast = nullcontext,
    scale: Callable[[Tensor], Tensor] = _unscaled,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of host and seeds; return the loss and the correct predictions.

    A seed in isolation has a loss of its own: that of the network with this seed fully on, whose
    gradient goes to the seed alone.
    """
    with autocast():
        logits, incubations = model.forward_and_features(batch.inputs)
    loss, correct = loss_and_correct(logits, batch.targets)
    scale(loss).backward()  # type: ignore[no-untyped-call]
    for incubation in incubations:
        parameters = list(incubation.slot.seed_parameters())
        if not parameters:
            continue
        side_loss = _loss_switched_on(model, incubation, batch.targets, autocast)
        scale(side_loss).backward(inputs=parameters)  # type: ignore[no-untyped-call]
        incubation.slot.record_birth()
    return loss, correct


def process_trial(env: ParallelEnvState, autocast: Autocast) -> None:
    """Try the seeds in isolation on the last batches of the pass."""
    if env.model.is_incubating:
        with env.fence.entered(is_training=True):
            env.num_tried = try_seeds(env.model, env.last_batches, autocast=autocast)
    # Not kept until the next pass, as they may occupy a device's memory.
    env.last_batches.clear()


@torch.no_grad()
def try_seeds(
    model: MorphogeneticModel, batches: Iterable[Batch], *, autocast: Autocast = nullcontext
) -> int:
    """Let each seed in isolation keep as much of what it learned as helps the network.

    Return the number of predictions that were looked at, 0 if no seed is in isolation. Otherwise,
    the network is left in evaluation mode.
    """
    if not model.is_incubating:
        return 0
    model.eval()
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    with autocast():
        logits, incubations = model.forward_and_features(inputs)
    own_loss, _ = loss_and_correct(logits, targets)
    for incubation in incubations:
        look = partial(_loss_switched_on, model, incubation, targets, autocast)
        keep_what_helps(incubation.slot, own_loss, look)
    return targets.numel()


def _loss_switched_on(
    model: MorphogeneticModel, incubation: Incubation, targets: Tensor, autocast: Autocast
) -> Tensor:
    with autocast():
        logits = model.forward_switched_on(incubation)
    loss, _ = loss_and_correct(logits, targets)
    return loss


def _unscale_gradients(env: ParallelEnvState) -> None:
    if env.scaler is None:
        return
    # Gradient norms and clipping need unscaled gradients.
    for optimizer in (env.host_optimizer, *env.seed_optimizers):
        # The optimizer of a frozen seed has nothing to unscale.
        if gradients_of(optimizer):
            env.scaler.unscale_(optimizer)


def _clip_and_step(env: ParallelEnvState, max_grad_norm: float | None) -> None:
    for optimizer in (env.host_optimizer, *env.seed_optimizers):
        gradients = gradients_of(optimizer)
        if not gradients:
            continue
        if max_grad_norm is not None:
            clip_gradients(gradients, max_grad_norm)
        if env.scaler is None:
            sgd_step(optimizer)
        else:
            # The only synchronization in a batch: GradScaler reads whether gradients overflowed.
            # A fused optimizer does not, but leaves its moments unset if its first step is skipped.
            env.scaler.step(optimizer)
    if env.scaler is not None:
        env.scaler.update()


def collect_gradient_telemetry_for_batch(env: ParallelEnvState) -> None:
    """Store this batch's gradient norms on the device, replacing those of an earlier batch."""
    collect = _collect_gradient_telemetry
    # Compiling a few norms is not worth it and would break the host's graph. `disable` is not used
    # as a decorator because that would import torch's compiler in every run.
    if torch.compiler.is_compiling():
        collect = torch.compiler.disable(collect)  # type: ignore[no-untyped-call]
    collect(env)


def _collect_gradient_telemetry(env: ParallelEnvState) -> None:
    env.gradient_sample = GradientSample(
        host_norms=gradient_norms(env.model.host_parameters()),
        seed_norms={
            slot.slot_id: gradient_norms(slot.seed_parameters())
            for slot in env.model.all_slots()
            if slot.state is not None and slot.state.stage in MEASURED_STAGES
        },
    )


def materialize_gradient_readings(env: ParallelEnvState) -> dict[str, GradientReading]:
    """Read the pass's gradient sample in one transfer; call only after the fence."""
    sample = env.gradient_sample
    if sample is None:
        return {}
    # Joined on the device, so that one transfer fetches all of them.
    parts = [sample.host_norms, *sample.seed_norms.values()]
    numbers = iter(materialize_facts(torch.cat(parts)))
    split = [[next(numbers) for _ in range(len(part))] for part in parts]
    host_norm = _total(split[0])
    env.host_gradient_norm = host_norm
    readings: dict[str, GradientReading] = {}
    for slot_id, norms in zip(sample.seed_norms, split[1:], strict=True):
        slot = env.model.slot(slot_id)
        if norms and slot.state is not None:
            ratio = gradient_ratio(
                _total(norms), slot.num_params, host_norm, env.model.num_host_params
            )
            seed_id = slot.state.seed_id
            # By seed, not by slot: a successor in the same slot starts without a history.
            env.gradient_ratios[seed_id] = smoothed(env.gradient_ratios.get(seed_id), ratio)
            readings[slot_id] = reading_of(norms, env.gradient_ratios[seed_id])
    return readings


def materialize_train_pass(env: ParallelEnvState) -> dict[str, GradientReading]:
    """Synchronize with the device once, then read the pass's loss, accuracy and gradients."""
    env.fence.synchronize()
    losses, accuracies = env.train.materialize_means()
    env.train_loss, env.train_accuracy_pct = losses[0], accuracies[0]
    return materialize_gradient_readings(env)


def _total(norms: Sequence[float]) -> float:
    return math.hypot(*norms)


def process_val_batch(env: ParallelEnvState, batch: Batch, autocast: Autocast) -> None:
    """Accumulate one batch's loss and correct predictions of the unablated network."""
    with env.fence.entered(is_training=False):
        env.fence.await_transfers()
        env.fence.record_stream(batch.inputs, batch.targets)
        with autocast():
            logits = env.model(batch.inputs)
        loss, correct = loss_and_correct(logits, batch.targets)
        env.val.add(loss, correct, batch.targets.numel())


def batch_signals_to_features(
    extractor: FeatureExtractor,
    signals: Sequence[TrainingSignals],
    reports: Sequence[Sequence[SeedReport]],
    feedback: Sequence[ActionFeedback],
) -> ObservationBatch:
    """Build the observations of all envs in one batch."""
    return extractor.observe(signals, reports, feedback)
