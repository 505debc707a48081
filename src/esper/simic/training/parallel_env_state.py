"""One env: a host with its optimizers, governor and tracker, and the accumulators of its passes."""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.optimizers import SeedOptimizers
from esper.kasmina.schedules import ScheduledOptimizer
from esper.kasmina.slot_operations import SlotOperations
from esper.kasmina.trial import TRIAL_BATCHES
from esper.leyline.messages import Panic
from esper.leyline.reports import SeedReport
from esper.runtime.batches import Batch
from esper.simic.control.context import HandlerContext
from esper.simic.training.env_episode import EnvEpisode
from esper.tolaria.fences import Fence
from esper.tolaria.governor import Governor

__all__ = ["Accumulators", "GradientSample", "ParallelEnvState"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientSample:
    """Gradient norms of one batch, still on the device."""

    host_norms: Tensor  # float64 [host tensors]
    seed_norms: dict[str, Tensor]
    """Slot id to float64 [seed tensors]."""


@dataclass(eq=False, slots=True)
class Accumulators:
    """Running sums of a pass, on the device until the pass is over."""

    loss: Tensor
    """Sum over predictions, [K]: batches of a pass may differ in size."""
    correct: Tensor
    """[K]."""
    total: int = 0
    """Number of predictions that `loss` and `correct` sum over."""

    @classmethod
    def zeros(cls, num_configs: int, device: torch.device) -> "Accumulators":
        """Return zero-initialized accumulators."""
        return cls(
            loss=torch.zeros(num_configs, device=device),
            correct=torch.zeros(num_configs, device=device),
        )

    def add(self, loss: Tensor, correct: Tensor, total: int) -> None:
        """Add one batch, given its mean loss, without reading values from the device."""
        # Weighted by size: the last batch of a pass may be smaller, and a mean of means would be
        # off.
        self.loss += loss.detach() * total
        self.correct += correct
        self.total += total

    def materialize_means(self) -> tuple[list[float], list[float]]:
        """Read mean losses and accuracies (%) in one transfer; call only after the fence."""
        both = torch.stack([self.loss, 100.0 * self.correct]) / self.total
        losses, accuracies = both.tolist()
        return losses, accuracies


@dataclass(eq=False, kw_only=True, slots=True)
class ParallelEnvState(EnvEpisode):
    """An env of one round whose body is a network; accessed only by the lane that owns it."""

    device: torch.device
    fence: Fence
    model: MorphogeneticModel
    host_optimizer: torch.optim.Optimizer
    host_schedule: ScheduledOptimizer
    seed_optimizers: SeedOptimizers
    scaler: torch.amp.GradScaler | None
    governor: Governor
    seed_generator: torch.Generator
    """Generator for the initial parameters of all seeds of this env."""
    gradient_sample: GradientSample | None = None
    gradient_ratios: dict[str, float] = field(default_factory=dict)
    """Smoothed values by seed id."""
    last_batches: deque[Batch] = field(default_factory=partial(deque, maxlen=TRIAL_BATCHES))
    """The last training batches of the pass, kept while a seed is in isolation."""
    num_tried: int = 0
    """Predictions of the pass on which seeds in isolation were tried."""
    train_loss: float = 0.0
    train_accuracy_pct: float = 0.0
    train: Accumulators = field(init=False)
    val: Accumulators = field(init=False)

    def __post_init__(self) -> None:
        """Reject a CUDA stream on a non-CUDA device, and create the accumulators."""
        if self.stream is not None and self.device.type != "cuda":
            raise ValueError(f"env {self.env_idx}: a CUDA stream cannot serve {self.device}")
        self.init_accumulators()
        self.reset_lstm_hidden()

    @property
    def stream(self) -> object | None:
        """Return the CUDA stream of this env, or None if the device has no streams."""
        return getattr(self.fence, "stream", None)

    def init_accumulators(self) -> None:
        """Create the accumulators of an episode."""
        self.zero_accumulators()
        self.reset_counters()

    def zero_accumulators(self) -> None:
        """Reset the accumulators for a new step."""
        self.train = Accumulators.zeros(1, self.device)
        self.gradient_sample = None
        self.last_batches.clear()
        self.num_tried = 0
        self.alarms = ()
        self.start_validation(num_configs=1)

    def start_validation(self, num_configs: int) -> None:
        """Create the accumulators of a validation pass over several configurations."""
        self.val = Accumulators.zeros(num_configs, self.device)

    @property
    def reports(self) -> tuple[SeedReport, ...]:
        """Return the occupied slots, in action order."""
        return tuple(self.model.reports().values())

    def slots(self) -> Iterator[SlotOperations]:
        """Return all slots, in action order."""
        return self.model.all_slots()

    def handler_context(self) -> HandlerContext[torch.Generator]:
        """Return what an op handler needs besides the action."""
        return HandlerContext(
            model=self.model,
            seed_id=self.next_seed_id,
            generator=self.seed_generator,
            accuracy_pct=self.seen.signals.val_accuracy_pct,
            step=self.seen.signals.step,
            is_sterile=self.is_next_sterile,
        )

    def acting(self) -> AbstractContextManager[object]:
        """Enter the device's context, with gradients enabled."""
        return self.fence.entered(is_training=True)

    def secure_fossil(self) -> None:
        """Take a snapshot: a rollback restores it, and it must contain the new fossil's weights."""
        self.governor.take_snapshot()

    def roll_back(self, panic: Panic) -> tuple[str, ...]:
        """Restore the governor's snapshot and return the slots whose seeds were pruned."""
        with self.acting():
            pruned_slots = self.governor.roll_back(panic)
        # Optimizer moments belong to the discarded weights and could make the host diverge again.
        self.host_optimizer.state.clear()
        self.seed_optimizers.forget_moments()
        return pruned_slots

    def scramble(self, slot_id: str) -> None:
        """Put the weights of a seed into another order."""
        with self.acting():
            self.model.slot(slot_id).scramble(self.seed_generator)

    def tick(self) -> None:
        """Advance every slot by one step, and the optimizers with them."""
        self.model.tick()
        # At once, so that the next training pass steps a new seed and holds no reference to a
        # removed one.
        self.seed_optimizers.sync_with(self.model)
