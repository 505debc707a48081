"""One env's episode: its evidence, events and counters, whatever its body consists of."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from esper.kasmina.slot_operations import SlotOperations
from esper.leyline.messages import EnvEvidence, LstmRow, Panic
from esper.leyline.payloads import GradientAnomaly, Payload, SlotActivity
from esper.leyline.reports import SeedReport
from esper.leyline.stages import COOLDOWN_STAGES, Stage
from esper.simic.control.context import HandlerContext
from esper.tamiyo.tracker import SignalTracker

__all__ = ["EnvEpisode"]


@dataclass(eq=False, kw_only=True, slots=True)
class EnvEpisode(ABC):
    """An env of one round; accessed only by the lane that owns it.

    What decisions act on is the subclass's: a network (`ParallelEnvState`) or an analytic model of
    one (`ProbeEnv`).
    """

    env_idx: int
    round_index: int
    episode_id: int
    slot_ids: tuple[str, ...]
    """In action order."""
    signal_tracker: SignalTracker
    outbox: list[Payload] = field(default_factory=list)
    """Slot events that have not been sent with an outcome yet."""
    num_germinated: int = 0
    sterile_seeds: tuple[bool, ...] = ()
    """Whether each seed is sterile, in the order of germination; empty if none is."""
    is_sabotaged: bool = False
    host_gradient_norm: float | None = None
    alarms: tuple[GradientAnomaly, ...] = ()
    """Anomalies found in this step's train pass."""
    evidence: EnvEvidence | None = None
    """Results of this step's validation."""
    epoch_counts: dict[str, int] = field(init=False)
    """Number of ops on each slot in this episode, without WAIT."""
    epoch_successes: dict[str, int] = field(init=False)
    epoch_rewards: dict[str, float] = field(init=False)
    """Sum of the raw rewards of the steps that acted on each slot."""
    last_target: str | None = None
    """The slot that the previous step acted on, which is credited with that step's reward."""
    lstm_hidden: LstmRow = field(init=False)
    """Number of steps in the policy's LSTM state of this env; control owns the tensors."""

    # --- The body ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def reports(self) -> tuple[SeedReport, ...]:
        """Return the occupied slots, in action order."""

    @abstractmethod
    def slots(self) -> Iterable[SlotOperations]:
        """Return all slots, in action order."""

    @abstractmethod
    def handler_context(self) -> HandlerContext[Any]:
        """Return what an op handler needs besides the action."""

    @abstractmethod
    def acting(self) -> AbstractContextManager[object]:
        """Enter the context in which ops change the body."""

    @abstractmethod
    def secure_fossil(self) -> None:
        """Make a new fossil part of what a rollback restores."""

    @abstractmethod
    def roll_back(self, panic: Panic) -> tuple[str, ...]:
        """Restore the last good state and return the slots whose seeds were pruned."""

    @abstractmethod
    def scramble(self, slot_id: str) -> None:
        """Make a seed useless."""

    @abstractmethod
    def tick(self) -> None:
        """Advance every slot by one step."""

    # --- The episode -------------------------------------------------------------------------

    def reset_counters(self) -> None:
        """Set the counters to those of a new episode."""
        self.epoch_counts = dict.fromkeys(self.slot_ids, 0)
        self.epoch_successes = dict.fromkeys(self.slot_ids, 0)
        self.epoch_rewards = dict.fromkeys(self.slot_ids, 0.0)

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
    def next_seed_id(self) -> str:
        """Return the id of the seed that a germination would create."""
        return f"ep{self.episode_id}_env{self.env_idx}_seed_{self.num_germinated}"

    @property
    def is_next_sterile(self) -> bool:
        """Return whether the seed that a germination would create is sterile."""
        return bool(self.sterile_seeds) and self.sterile_seeds[self.num_germinated]

    @property
    def seen(self) -> EnvEvidence:
        """Return the results of this step's validation."""
        assert self.evidence is not None, f"env {self.env_idx} acts before its validation"
        return self.evidence

    @property
    def active_slot(self) -> str | None:
        """Return the slot of the seed in the most advanced stage, fossils excluded."""
        report = self._active_report()
        return None if report is None else report.slot_id

    @property
    def seed_stage(self) -> Stage:
        """Return the stage of the seed in the active slot, or DORMANT if there is none."""
        report = self._active_report()
        return Stage.DORMANT if report is None else report.stage

    def _active_report(self) -> SeedReport | None:
        ongoing = [
            report
            for report in self.reports
            if report.stage is not Stage.FOSSILIZED and report.stage not in COOLDOWN_STAGES
        ]
        # Stages are ordered by their numbers; alpha decides between two in the same stage.
        return max(ongoing, key=lambda report: (report.stage, report.alpha.alpha), default=None)

    def take_outbox(self) -> tuple[Payload, ...]:
        """Return and clear the slot events."""
        taken = tuple(self.outbox)
        self.outbox.clear()
        return taken
