"""One env: a host with its optimizers, governor and tracker, and what its passes accumulate."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.optimizers import SeedOptimizers
from esper.leyline.messages import EnvEvidence, LstmRow
from esper.leyline.payloads import Payload, SlotActivity
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
    """Sums over a pass, on the device until the pass is over."""

    loss: Tensor
    """Sum of batch means, [K]."""
    correct: Tensor
    """[K]."""
    total: int = 0
    """Predictions counted by `correct`."""
    batches: int = 0

    @classmethod
    def zeros(cls, num_configs: int, device: torch.device) -> "Accumulators":
        """Return sums of nothing."""
        return cls(
            loss=torch.zeros(num_configs, device=device),
            correct=torch.zeros(num_configs, device=device),
        )

    def add(self, loss: Tensor, correct: Tensor, total: int) -> None:
        """Add one batch without looking at its numbers."""
        self.loss += loss.detach()
        self.correct += correct
        self.total += total
        self.batches += 1

    def materialize_means(self) -> tuple[list[float], list[float]]:
        """Read mean losses and accuracies in percent, in one transfer; only after the fence."""
        both = torch.stack([self.loss / self.batches, 100.0 * self.correct / self.total])
        losses, accuracies = both.tolist()
        return losses, accuracies


@dataclass(eq=False, kw_only=True, slots=True)
class ParallelEnvState:
    """An env of one round; only the lane that owns it touches it."""

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
    """Draws the parameters of every seed that germinates here."""
    outbox: list[Payload] = field(default_factory=list)
    """What the slots have told and no report has carried away yet."""
    num_germinated: int = 0
    gradient_sample: GradientSample | None = None
    gradient_ratios: dict[str, float] = field(default_factory=dict)
    """Smoothed, by seed id."""
    host_gradient_norm: float | None = None
    alarms: tuple[Payload, ...] = ()
    """What this step's train pass came across."""
    evidence: EnvEvidence | None = None
    """What this step's validation saw."""
    train_loss: float = 0.0
    train_accuracy_pct: float = 0.0
    train: Accumulators = field(init=False)
    val: Accumulators = field(init=False)
    epoch_counts: dict[str, int] = field(init=False)
    """Ops decided on each slot in this episode."""
    epoch_successes: dict[str, int] = field(init=False)
    epoch_rewards: dict[str, float] = field(init=False)
    """Raw rewards of the steps that acted on each slot."""
    last_target: str | None = None
    """The slot that the step before acted on, to which its reward belongs."""
    lstm_hidden: LstmRow = field(init=False)
    """How much the policy remembers of this env; control owns the tensors."""

    def __post_init__(self) -> None:
        """Refuse a stream without its device, and start with empty sums."""
        if self.stream is not None and self.device.type != "cuda":
            raise ValueError(f"env {self.env_idx}: a CUDA stream cannot serve {self.device}")
        self.init_accumulators()
        self.reset_lstm_hidden()

    @property
    def stream(self) -> object | None:
        """Return the CUDA stream of this env, or None where the device has none."""
        return getattr(self.fence, "stream", None)

    def init_accumulators(self) -> None:
        """Create the sums of an episode."""
        self.zero_accumulators()
        slot_ids = self.model.slot_config.slot_ids
        self.epoch_counts = dict.fromkeys(slot_ids, 0)
        self.epoch_successes = dict.fromkeys(slot_ids, 0)
        self.epoch_rewards = dict.fromkeys(slot_ids, 0.0)

    def zero_accumulators(self) -> None:
        """Start the sums of a step anew."""
        self.train = Accumulators.zeros(1, self.device)
        self.gradient_sample = None
        self.alarms = ()
        self.start_validation(num_configs=1)

    def start_validation(self, num_configs: int) -> None:
        """Start the sums of a validation pass over several configurations."""
        self.val = Accumulators.zeros(num_configs, self.device)

    def reset_lstm_hidden(self) -> None:
        """Let the policy's memory of this env start anew; control obeys with the step's outcome."""
        self.lstm_hidden = LstmRow(index=self.env_idx)

    def slot_activity(self) -> tuple[SlotActivity, ...]:
        """Return the sums of the episode so far, slot by slot in action order."""
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
        """Return what this step's validation saw."""
        assert self.evidence is not None, f"env {self.env_idx} acts before it was validated"
        return self.evidence

    @property
    def reports(self) -> tuple[SeedReport, ...]:
        """Return the occupied slots, in action order."""
        return tuple(self.model.reports().values())

    @property
    def active_slot(self) -> str | None:
        """Return the slot of the seed that is furthest on its way, fossils aside."""
        ongoing = [
            report
            for report in self.reports
            if report.stage is not Stage.FOSSILIZED and report.stage not in COOLDOWN_STAGES
        ]
        furthest = max(ongoing, key=lambda report: (report.stage, report.alpha.alpha), default=None)
        return None if furthest is None else furthest.slot_id

    @property
    def seed_stage(self) -> Stage:
        """Return the stage of the seed in the active slot; DORMANT without one."""
        slot_id = self.active_slot
        state = None if slot_id is None else self.model.slot(slot_id).state
        return Stage.DORMANT if state is None else state.stage

    def take_outbox(self) -> tuple[Payload, ...]:
        """Hand over what the slots have told."""
        taken = tuple(self.outbox)
        self.outbox.clear()
        return taken
