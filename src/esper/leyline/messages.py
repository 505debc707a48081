"""The messages exchanged by engine, control and trainer within a round.

Ids, numbers, reports and actions only, never a live object: msgspec encodes and decodes every
message. Use MessagePack between processes, as JSON cannot represent non-finite numbers. Tuples over
envs are in env order, and a quarantined env has None in its place.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Final, TypeVar

import msgspec

from esper.leyline.actions import ActionOutcome, ActionSpec
from esper.leyline.attribution import AttributionEvidence
from esper.leyline.effects import EnvEffect
from esper.leyline.payloads import (
    CoalitionResult,
    GradientAnomaly,
    HeadChoice,
    RewardHackingSuspected,
    SlotActivity,
)
from esper.leyline.reports import EpisodeRecord, SeedReport
from esper.leyline.rewards import RewardComponents
from esper.leyline.signals import TrainingSignals
from esper.leyline.stages import Stage

__all__ = [
    "ActionExecutionResult",
    "DecisionDetail",
    "EnvEvidence",
    "EnvFailure",
    "EnvOutcome",
    "EnvTestResult",
    "LstmRow",
    "MemoryStats",
    "Panic",
    "PanicReason",
    "PenaltyOutcome",
    "Phase",
    "RollbackReport",
    "StepDecision",
    "StepEvidence",
    "StepOutcome",
    "StepRecord",
    "by_env",
    "merge_decisions",
    "merge_evidence",
]

T = TypeVar("T")

by_env: Final = attrgetter("env_id")
"""Sorts messages about envs."""


class Phase(StrEnum):
    """What an env was going through."""

    BUILD = "build"
    TRAIN = "train"
    VALIDATE = "validate"
    APPLY = "apply"


class EnvFailure(msgspec.Struct, frozen=True, kw_only=True):
    """An env failed; it is quarantined for the rest of the round."""

    env_id: int
    phase: Phase
    step: int | None
    batch: int | None = None
    slot_id: str | None = None
    layer: str | None = None
    error_type: str
    message: str


class PanicReason(StrEnum):
    """Why a host is rolled back."""

    NAN = "nan"
    """The loss is not finite."""
    LOBOTOMY = "lobotomy"
    """The loss of a trained host is back at the random-guess level."""
    DIVERGENCE = "divergence"
    """The loss exploded for several steps in a row."""


class Panic(msgspec.Struct, frozen=True, kw_only=True):
    """The governor's decision that a rollback is needed."""

    reason: PanicReason
    loss: float
    threshold: float | None
    """The loss above which a value counts as divergence, once there is a history."""
    consecutive_anomalies: int


class EnvEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one env showed in this step's training and validation, before the decision."""

    env_id: int
    signals: TrainingSignals
    reports: tuple[SeedReport, ...]
    """Occupied slots, in action order."""
    attribution: AttributionEvidence
    coalitions: tuple[CoalitionResult, ...]
    """Accuracies of the active seeds' coalitions; empty when there was nothing to ablate."""
    strategy: str
    """`full_factorial` or `leave_one_out`."""
    stable_accuracy_pct: float
    """The lowest of the last accuracies, over the escrow window."""
    host_params: int
    total_params: int
    host_gradient_norm: float | None
    became_stable: bool
    """The host's stability latch was set in this step."""
    panic: Panic | None
    train_samples: int
    trial_samples: int
    """Predictions on which seeds in isolation were tried after the training pass."""
    val_samples: int
    alarms: tuple[GradientAnomaly, ...] = ()
    """Gradient anomalies detected during the passes."""


class EnvTestResult(msgspec.Struct, frozen=True, kw_only=True):
    """One env's result on the test split, which no decision depends on."""

    env_id: int
    loss: float
    accuracy_pct: float
    num_samples: int


class MemoryStats(msgspec.Struct, frozen=True, kw_only=True):
    """Memory statistics of a device's allocator."""

    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int
    total_bytes: int
    num_retries: int
    num_ooms: int

    @property
    def used_fraction(self) -> float:
        """Return the fraction of the device memory in use, by any process."""
        return 1 - self.free_bytes / self.total_bytes


class StepEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the envs of some workers, or of all, showed in one step."""

    round: int
    step: int
    env_ids: tuple[int, ...]
    """The envs of these workers, failed ones included, in order."""
    envs: tuple[EnvEvidence | None, ...]
    failures: tuple[EnvFailure, ...] = ()
    """Envs that failed since the last message."""
    feeder_wait_s: float = 0.0
    """How long the lanes, all together, had no batch to train on."""


class DecisionDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Details of a decision, for diagnosing the policy."""

    value_estimate: float | None
    op_probabilities: dict[str, float | None]
    heads: dict[str, HeadChoice]
    observation_hash: str | None


class StepDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The actions of the envs of some workers, or of all.

    An env that panicked is rolled back instead.
    """

    round: int
    step: int
    is_last_step: bool
    """The episodes end with this step."""
    is_truncated: bool = False
    """The episodes are cut off with this step: the engine reports the states that follow."""
    actions: tuple[ActionSpec | None, ...]
    details: tuple[DecisionDetail | None, ...]
    previous_rewards: tuple[float | None, ...]
    """What the decisions of the step before earned; None at the start of an episode."""


class RollbackReport(msgspec.Struct, frozen=True, kw_only=True):
    """A rollback that was carried out."""

    panic: Panic
    pruned_slots: tuple[str, ...]
    active_slot: str | None
    """The slot whose seed was furthest on its way; None without one."""
    active_stage: Stage
    """The stage of that seed; DORMANT without one."""


class PenaltyOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a rollback's penalty was attributed."""

    blamed_step: int | None
    """The step that took it; None when the segment had none."""
    num_steps_forfeited: int
    """Steps of the segment whose reward is lost, the blamed one included."""


class LstmRow(msgspec.Struct, frozen=True, kw_only=True):
    """An env's row of the policy's recurrent state, whose numbers control owns."""

    index: int
    num_steps: int = 0
    """Decisions that the row has to remember; 0 makes control zero it."""


class EnvOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one env's decision, and the env's state after the step's tick."""

    env_id: int
    outcome: ActionOutcome
    rollback: RollbackReport | None
    action_effects: tuple[EnvEffect, ...]
    """What the action caused, causal chain included, in order."""
    tick_effects: tuple[EnvEffect, ...]
    """What the tick at the end of the step caused."""
    reports: tuple[SeedReport, ...]
    """After the tick: what the next step would start from."""
    num_auto_prunes: int
    """Prunes that the governor made."""
    lstm_hidden: LstmRow
    slots: tuple[SlotActivity, ...]
    """Sums over the episode so far, in action order; this step's reward is not known yet."""


class ActionExecutionResult(msgspec.Struct, kw_only=True):
    """The results of the decisions of one lane's envs, in env order.

    The `post_action_*` lists have one entry per truncated target and are empty unless the decision
    says that the episodes are cut off.
    """

    outcomes: list[EnvOutcome] = []
    truncated_bootstrap_targets: list[tuple[int, int]] = []
    """Pairs of env and step at which an episode is truncated and its return continues."""
    post_action_signals: list[TrainingSignals] = []
    post_action_slot_reports: list[tuple[SeedReport, ...]] = []
    post_action_masks: list[tuple[bool, ...]] = []
    """Which ops are legal after the step, in the order of ops."""


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one step's decisions: those of all lanes, merged in env order."""

    round: int
    step: int
    envs: tuple[EnvOutcome | None, ...]
    failures: tuple[EnvFailure, ...] = ()
    truncated_bootstrap_targets: tuple[tuple[int, int], ...] = ()
    """Pairs of env and step whose value control bootstraps; the next three have an entry each."""
    post_action_signals: tuple[TrainingSignals, ...] = ()
    post_action_slot_reports: tuple[tuple[SeedReport, ...], ...] = ()
    post_action_masks: tuple[tuple[bool, ...], ...] = ()


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one step earned, and what it ended."""

    rewards: tuple[float | None, ...]
    """Raw, before normalisation; None for quarantined and rolled-back envs."""
    components: tuple[RewardComponents | None, ...]
    is_forced: tuple[bool, ...]
    """WAIT was the only legal op."""
    penalties: tuple[PenaltyOutcome | None, ...]
    """How the penalties of this step's rollbacks were attributed."""
    alarms: tuple[tuple[int, RewardHackingSuspected], ...] = ()
    """Suspicions about rewards, by env."""
    ended: tuple[EpisodeRecord, ...] = ()
    """Episodes that end with this step, including those of failed envs."""


def merge_evidence(parts: Sequence[StepEvidence]) -> StepEvidence:
    """Return the evidence of a step from that of its workers."""
    return StepEvidence(
        round=parts[0].round,
        step=parts[0].step,
        env_ids=tuple(sorted(env_id for part in parts for env_id in part.env_ids)),
        envs=_merged_rows(part.envs for part in parts),
        # Workers are ready in any order; events must not depend on it.
        failures=tuple(sorted((item for part in parts for item in part.failures), key=by_env)),
        feeder_wait_s=sum(part.feeder_wait_s for part in parts),
    )


def merge_decisions(parts: Sequence[StepDecision]) -> StepDecision:
    """Return the decisions of a step from those about the envs of its workers."""
    return msgspec.structs.replace(
        parts[0],
        actions=_merged_rows(part.actions for part in parts),
        details=_merged_rows(part.details for part in parts),
    )


def _merged_rows(rows: Iterable[tuple[T | None, ...]]) -> tuple[T | None, ...]:
    """Return one row in which each env has its only entry."""
    return tuple(
        next((item for item in items if item is not None), None)
        for items in zip(*rows, strict=True)
    )
