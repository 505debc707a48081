"""The reward ledger: rewards of one env's episode, and the state that its next reward needs."""

import statistics
from dataclasses import dataclass, field
from typing import Final

import msgspec

from esper.leyline.actions import Op
from esper.leyline.effects import Fossilization, Germination, Pruning
from esper.leyline.messages import EnvEvidence, EnvOutcome, PenaltyOutcome
from esper.leyline.payloads import SlotActivity
from esper.leyline.reports import EpisodeRecord, EpisodeStatus
from esper.leyline.rewards import RewardInputs, RewardMemory, RewardResult
from esper.leyline.stages import Stage
from esper.simic.rewards.dispatcher import compute_reward
from esper.simic.rewards.inputs import memory_at, seed_inputs, slot_stages
from esper.simic.rewards.scaffold import (
    ScaffoldEntry,
    hindsight_credit,
    with_interaction,
    without_beneficiary,
)
from esper.simic.rewards.scheme import RewardScheme

__all__ = ["EpisodeLedger", "rollback_penalty"]

STABILITY_WINDOW: Final = 20
MAX_ROLLBACK_PENALTY: Final = 10.0


def rollback_penalty(death_penalty: float) -> float:
    """Return the negative reward of a rollback, bounded so that it does not hide all others."""
    return -min(death_penalty, MAX_ROLLBACK_PENALTY)


@dataclass(eq=False, slots=True)
class EpisodeLedger:
    """Reward state of one env's episode; the reward functions themselves are stateless."""

    env_id: int
    round_index: int
    episode_id: int
    num_steps: int
    """Length of the episode."""
    scheme: RewardScheme
    memory: RewardMemory = field(default_factory=RewardMemory)
    scaffolds: tuple[ScaffoldEntry, ...] = ()
    pending_auto_prunes: int = 0
    pending_credit: float = 0.0
    start_accuracy_pct: float | None = None
    rewards: list[float] = field(default_factory=list)
    """Raw rewards, one per step without a rollback; a rollback overwrites those of its segment."""
    task_rewards: list[float] = field(default_factory=list)
    """The same without shaping."""
    segment_start: int = 0
    """Index in `rewards` where the current segment starts."""
    last_paid_step: int | None = None
    num_germinated: int = 0
    num_pruned: int = 0
    num_fossilized: int = 0
    num_rollbacks: int = 0
    is_restored: bool = False
    """Whether a rollback has happened since the last reward."""
    last_evidence: EnvEvidence | None = None
    slots: tuple[SlotActivity, ...] = ()
    """The activity per slot reported by the env, with the last reward added."""

    def reward(self, evidence: EnvEvidence, outcome: EnvOutcome) -> RewardResult:
        """Compute and record the reward of a step."""
        # The first validation comes after a first training pass; there is none of an untrained
        # host.
        if self.start_accuracy_pct is None:
            self.start_accuracy_pct = evidence.signals.val_accuracy_pct
        inputs = self._inputs(evidence, outcome)
        result = compute_reward(inputs, self.scheme)
        self.memory = result.memory
        self.slots = _credited(outcome.slots, inputs.target_slot, result.total)
        # Paid with the next step's reward: they follow from this step's end, which its reward has
        # not seen.
        self.pending_auto_prunes, self.pending_credit = outcome.num_auto_prunes, 0.0
        self.is_restored = False
        self._note_scaffolds(evidence, outcome)
        self._count(outcome)
        self.rewards.append(result.total)
        self.task_rewards.append(result.components.task_total())
        self.last_paid_step = evidence.signals.step
        self.last_evidence = evidence
        return result

    def roll_back(
        self, evidence: EnvEvidence, outcome: EnvOutcome, penalty: float
    ) -> PenaltyOutcome:
        """Zero the rewards of the segment and give its last step the penalty.

        A step that panics did not act and has no reward of its own. Pending credits of earlier
        steps remain: the fossil that earned a credit survives a rollback.
        """
        num_forfeited = len(self.rewards) - self.segment_start
        if num_forfeited:
            # A rollback undoes what the segment did, so nothing in it may have paid off; the
            # penalty goes to its last step, from where the discount carries it back.
            kept = [*[0.0] * (num_forfeited - 1), penalty]
            self.rewards[self.segment_start :] = kept
            self.task_rewards[self.segment_start :] = kept
        self.segment_start = len(self.rewards)
        self.num_rollbacks += 1
        self.is_restored = True
        self.pending_auto_prunes += outcome.num_auto_prunes
        # Shaping potentials restart at the restored state: their difference across a rollback would
        # reward or punish the restoration itself.
        self.memory = memory_at(outcome.reports, self.scheme)
        self.slots = outcome.slots
        self._count(outcome)
        self.last_evidence = evidence
        return PenaltyOutcome(
            blamed_step=self.last_paid_step if num_forfeited else None,
            num_steps_forfeited=num_forfeited,
        )

    def record(self, *, outcome: EnvOutcome | None, success_accuracy_pct: float) -> EpisodeRecord:
        """Return the record of the episode; `outcome` is None if the env failed before its end."""
        evidence = self.last_evidence
        accuracy = None if evidence is None else evidence.signals.val_accuracy_pct
        has_succeeded = accuracy is not None and accuracy >= success_accuracy_pct
        status = EpisodeStatus.SUCCESS if has_succeeded else EpisodeStatus.TIMEOUT
        # The variance of recent rewards, mapped to (0, 1]: 1 is a constant reward.
        recent = self.rewards[-STABILITY_WINDOW:]
        variance = statistics.pvariance(recent) if recent else 0.0
        return EpisodeRecord(
            round=self.round_index,
            env_id=self.env_id,
            episode_id=self.episode_id,
            status=EpisodeStatus.FAILED if outcome is None else status,
            num_steps=0 if evidence is None else evidence.signals.step + 1,
            final_accuracy_pct=accuracy,
            best_accuracy_pct=None if evidence is None else evidence.signals.best_val_accuracy_pct,
            final_loss=None if evidence is None else evidence.signals.val_loss,
            total_reward=sum(self.rewards),
            task_return=sum(self.task_rewards),
            stability=1.0 / (1.0 + variance),
            param_ratio=_param_ratio(evidence, outcome),
            num_germinated=self.num_germinated,
            num_pruned=self.num_pruned,
            num_fossilized=self.num_fossilized,
            num_contributing_fossils=self._num_contributing(evidence, outcome),
            num_rollbacks=self.num_rollbacks,
        )

    def _num_contributing(self, evidence: EnvEvidence | None, outcome: EnvOutcome | None) -> int:
        """Count the fossils that contributed in the last validation."""
        if evidence is None or outcome is None:
            return 0
        fossils = [report for report in outcome.reports if report.stage is Stage.FOSSILIZED]
        return sum(self.scheme.is_contributing(fossil.contribution_pp) for fossil in fossils)

    def _inputs(self, evidence: EnvEvidence, outcome: EnvOutcome) -> RewardInputs:
        action, signals = outcome.outcome.action, evidence.signals
        start = self.start_accuracy_pct
        assert start is not None
        op = outcome.outcome.effective_op
        return RewardInputs(
            op=op,
            has_succeeded=outcome.outcome.succeeded,
            target_slot=None if op is Op.WAIT else action.slot_id,
            step=signals.step,
            num_steps=self.num_steps,
            val_accuracy_pct=signals.val_accuracy_pct,
            val_loss=signals.val_loss,
            # After a rollback the previous loss belongs to discarded weights: no improvement term.
            loss_delta=None if self.is_restored else signals.loss_delta,
            accuracy_since_start_pp=signals.val_accuracy_pct - start,
            stable_accuracy_pct=evidence.stable_accuracy_pct,
            committed_accuracy_pct=evidence.attribution.committed_accuracy_pct,
            host_params=evidence.host_params,
            seeds=tuple(
                seed_inputs(report, _attributed_pp(evidence, report.slot_id))
                for report in evidence.reports
            ),
            slots_after=slot_stages(outcome.reports),
            memory=self.memory,
            pending_auto_prunes=self.pending_auto_prunes,
            pending_hindsight_credit=self.pending_credit,
        )

    def _note_scaffolds(self, evidence: EnvEvidence, outcome: EnvOutcome) -> None:
        step = evidence.signals.step
        for pair in evidence.attribution.interactions:
            self.scaffolds = with_interaction(
                self.scaffolds, pair.first_slot, pair.second_slot, pair.interaction_pp, step
            )
        action = outcome.outcome
        if action.effective_op is Op.FOSSILIZE and action.succeeded:
            slot_id = action.action.slot_id
            seed = evidence.attribution.of(slot_id)
            contribution = None if seed is None else seed.contribution_pp
            self.pending_credit = hindsight_credit(
                self.scaffolds, slot_id, contribution, step, self.scheme.config, self.scheme.gamma
            )
            self.scaffolds = without_beneficiary(self.scaffolds, slot_id)

    def _count(self, outcome: EnvOutcome) -> None:
        for effect in (*outcome.action_effects, *outcome.tick_effects):
            match effect:
                case Germination():
                    self.num_germinated += 1
                case Pruning(pruned):
                    self.num_pruned += 1
                    # Scaffolding credits of this seed do not pass to its successor.
                    self.scaffolds = without_beneficiary(self.scaffolds, pruned.slot_id)
                case Fossilization():
                    self.num_fossilized += 1


def _credited(
    slots: tuple[SlotActivity, ...], target_slot: str | None, reward: float
) -> tuple[SlotActivity, ...]:
    """Add a step's reward to the slot that it acted on; the env receives it one step later."""
    return tuple(
        msgspec.structs.replace(slot, reward=(slot.reward or 0.0) + reward)
        if slot.slot_id == target_slot
        else slot
        for slot in slots
    )


def _param_ratio(evidence: EnvEvidence | None, outcome: EnvOutcome | None) -> float:
    """Return total over host parameters; for a failed env from its last evidence."""
    if evidence is None:
        return 1.0
    if outcome is None:
        return evidence.total_params / evidence.host_params
    return 1.0 + sum(report.num_params for report in outcome.reports) / evidence.host_params


def _attributed_pp(evidence: EnvEvidence, slot_id: str) -> float | None:
    seed = evidence.attribution.of(slot_id)
    return None if seed is None else seed.attributed_pp
