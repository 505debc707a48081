"""One env: a host with its optimizers, governor and tracker, and the accumulators of its passes."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.optimizers import SeedOptimizers
from esper.leyline.messages import EnvEvidence, LstmRow
from esper.leyline.payloads import GradientAnomaly, Payload, SlotActivity
from esper.leyline.reports import SeedReport
from esper.leyline.stages import COOLDOWN_STAGES, Stage
from esper.tamiyo.tracker import SignalTracker
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
        self.loss += loss.detach() * total
        self.correct += correct
        self.total += total

    def materialize_means(self) -> tuple[list[float], list[float]]:
        """Read mean losses and accuracies (%) in one transfer; call only after the fence."""
        both = torch.stack([self.loss, 100.0 * self.correct]) / self.total
        losses, accuracies = both.tolist()
        return losses, accuracies


@dataclass(eq=False, kw_only=True, slots=True)
class ParallelEnvState:
    """An env of one round; accessed only by the lane that owns it."""

    env_idx: int
    round_index: int
    episode_id: int
    device: torch.device
    fence: Fence
    model: MorphogeneticModel
    host_optimizer: torch.optim.Optimizer
    seed_optimizers: SeedOptimizers
    scaler: torch.amp.GradScaler | None
    governor: Governor
    signal_tracker: SignalTracker
    seed_generator: torch.Generator
    """Generator for the initial parameters of all seeds of this env."""
    outbox: list[Payload] = field(default_factory=list)
    """Slot events that have not been sent with an outcome yet."""
    num_germinated: int = 0
    gradient_sample: GradientSample | None = None
    gradient_ratios: dict[str, float] = field(default_factory=dict)
    """Smoothed values by seed id."""
    host_gradient_norm: float | None = None
    alarms: tuple[GradientAnomaly, ...] = ()
    """Anomalies found in this step's train pass."""
    evidence: EnvEvidence | None = None
    """Results of this step's validation."""
    train_loss: float = 0.0
    train_accuracy_pct: float = 0.0
    train: Accumulators = field(init=False)
    val: Accumulators = field(init=False)
    epoch_counts: dict[str, int] = field(init=False)
    """Number of ops on each slot in this episode, without WAIT."""
    epoch_successes: dict[str, int] = field(init=False)
    epoch_rewards: dict[str, float] = field(init=False)
    """Sum of the raw rewards of the steps that acted on each slot."""
    last_target: str | None = None
    """The slot that the previous step acted on, which is credited with that step's reward."""
    lstm_hidden: LstmRow = field(init=False)
    """Number of steps in the policy's LSTM state of this env; control owns the tensors."""

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
        slot_ids = self.model.slot_config.slot_ids
        self.epoch_counts = dict.fromkeys(slot_ids, 0)
        self.epoch_successes = dict.fromkeys(slot_ids, 0)
        self.epoch_rewards = dict.fromkeys(slot_ids, 0.0)

    def zero_accumulators(self) -> None:
        """Reset the accumulators for a new step."""
        self.train = Accumulators.zeros(1, self.device)
        self.gradient_sample = None
        self.alarms = ()
        self.start_validation(num_configs=1)

    def start_validation(self, num_configs: int) -> None:
        """Create the accumulators of a validation pass over several configurations."""
        self.val = Accumulators.zeros(num_configs, self.device)

    def reset_lstm_hidden(self) -> None:
        """Request a reset of this env's LSTM state; control applies it with the step's outcome."""
        self.lstm_hidden = LstmRow(index=self.env_idx)

    def slot_activity(self) -> tuple[SlotActivity, ...]:
        """Return the activity of the episode so far for each slot, in action order."""
        return tuple(
            SlotActivity(
                slot_id=slot_id,
                num_decided=num_decided,
                num_succeeded=self.epoch_successes[slot_id],
                reward=self.epoch_rewards[slot_id],
            )
            for slot_id, num_decided in self.epoch_counts.items()
        )

    @property
    def seen(self) -> EnvEvidence:
        """Return the results of this step's validation."""
        assert self.evidence is not None, f"env {self.env_idx} acts before its validation"
        return self.evidence

    @property
    def reports(self) -> tuple[SeedReport, ...]:
        """Return the occupied slots, in action order."""
        return tuple(self.model.reports().values())

    @property
    def active_slot(self) -> str | None:
        """Return the slot of the seed in the most advanced stage, fossils excluded."""
        ongoing = [
            report
            for report in self.reports
            if report.stage is not Stage.FOSSILIZED and report.stage not in COOLDOWN_STAGES
        ]
        furthest = max(ongoing, key=lambda report: (report.stage, report.alpha.alpha), default=None)
        return None if furthest is None else furthest.slot_id

    @property
    def seed_stage(self) -> Stage:
        """Return the stage of the seed in the active slot, or DORMANT if there is none."""
        slot_id = self.active_slot
        state = None if slot_id is None else self.model.slot(slot_id).state
        return Stage.DORMANT if state is None else state.stage

    def take_outbox(self) -> tuple[Payload, ...]:
        """Return and clear the slot events."""
        taken = tuple(self.outbox)
        self.outbox.clear()
        return taken
