"""Control: observes all envs, queries the controller, computes rewards, and runs its updates.

Everything here runs sequentially on the control thread.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor

from esper.leyline.actions import Op
from esper.leyline.episodes import episode_id_of, is_last_step
from esper.leyline.errors import ContractError
from esper.leyline.legality import ActionRules
from esper.leyline.messages import (
    EnvEvidence,
    EnvOutcome,
    PenaltyOutcome,
    StepDecision,
    StepEvidence,
    StepOutcome,
    StepRecord,
)
from esper.leyline.payloads import RewardHackingSuspected, SlotActivity
from esper.leyline.reports import EpisodeRecord, SeedReport
from esper.leyline.rewards import EpisodeEnd, HackingSuspicion, RewardComponents
from esper.leyline.signals import TrainingSignals
from esper.simic.agent.ppo_metrics import PPOMetrics
from esper.simic.rewards.scheme import RewardScheme
from esper.simic.training.batch_ops import batch_signals_to_features
from esper.simic.training.policy_controller import PolicyController, StepFacts
from esper.simic.training.reward_ledger import EpisodeLedger, rollback_penalty
from esper.simic.training.round_tally import (
    RoundTally,
    materialize_legality,
    summed_activity,
)
from esper.tamiyo.controllers.protocol import Controller, Situation
from esper.tamiyo.features import ActionFeedback, FeatureExtractor, ObservationBatch
from esper.tamiyo.masks import ActionMasker

__all__ = ["MAX_ENVS_DECIDED_APART", "Control", "RoundResult"]

MAX_ENVS_DECIDED_APART: Final = 512
"""With more envs a forward pass takes longer than what is won by not waiting for the slowest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundResult:
    """The result of a round."""

    episodes: tuple[EpisodeRecord, ...]
    metrics: PPOMetrics | None
    """None for a controller that does not learn."""
    tally: RoundTally
    slots: tuple[SlotActivity, ...]
    """Actions and rewards per slot, summed over all envs."""
    reward_scale: float | None
    rollback_attempts: int
    unattributed_penalties: int
    update_ms: float
    """Duration of the controller's update."""


@dataclass(eq=False, kw_only=True, slots=True)
class Control:
    """Connects the envs to the controller: observations, decisions, rewards and updates."""

    controller: Controller
    scheme: RewardScheme
    rules: ActionRules
    extractor: FeatureExtractor
    masker: ActionMasker
    num_envs: int
    num_steps: int
    death_penalty: float
    success_accuracy_pct: float
    updates_per_round: int
    """PPO updates per round of a learning controller."""
    check_cancelled: Callable[[], None]
    ledgers: list[EpisodeLedger] = field(default_factory=list)
    tally: RoundTally = field(default_factory=RoundTally)
    _is_forced: list[bool] = field(default_factory=list)
    """Per env, as of its last decision: WAIT was the only legal op."""
    _feedback: list[ActionFeedback] = field(default_factory=list)
    _previous_rewards: list[float | None] = field(default_factory=list)
    _episodes: dict[int, EpisodeRecord] = field(default_factory=dict)
    """Finished episodes of this round, by env."""
    _num_reported: int = 0
    """How many of them step records have reported already."""
    _num_rollbacks: int = 0
    _num_unattributed: int = 0

    @property
    def learner(self) -> PolicyController | None:
        """Return the controller if it learns, else None."""
        return self.controller if isinstance(self.controller, PolicyController) else None

    @property
    def decides_jointly(self) -> bool:
        """Return whether a decision needs, or had better wait for, the evidence of all envs."""
        return self.extractor.shows_other_envs or self.num_envs > MAX_ENVS_DECIDED_APART

    def begin_round(self, round_index: int) -> None:
        """Reset the ledgers and counters for a new round."""
        self.controller.begin_round(round_index)
        self.extractor.begin_round(round_index)
        self.tally = RoundTally()
        self.ledgers = [
            EpisodeLedger(
                env_id=env_id,
                round_index=round_index,
                episode_id=episode_id_of(round_index, env_id, num_envs=self.num_envs),
                num_steps=self.num_steps,
                scheme=self.scheme,
            )
            for env_id in range(self.num_envs)
        ]
        self._is_forced = [False] * self.num_envs
        self._feedback = [ActionFeedback()] * self.num_envs
        self._previous_rewards = [None] * self.num_envs
        self._episodes.clear()
        self._num_reported = 0
        self._num_rollbacks = self._num_unattributed = 0

    def decide(self, evidence: StepEvidence) -> StepDecision:
        """Choose one action for each env of the evidence, which may be that of a few workers."""
        reports = [() if env is None else env.reports for env in evidence.envs]
        signals = [None if env is None else env.signals for env in evidence.envs]
        observed = self._observe(signals, reports)
        # All other envs keep their row, with a blank observation: the policy's batch has the same
        # shape, so that an env's decision does not depend on which envs are decided with it, nor on
        # what happens to them.
        masks = self.masker.masks(reports)
        legality = materialize_legality(masks)
        _check_legal([(env_id, evidence.step) for env_id in range(self.num_envs)], legality)
        # A step without a choice teaches the policy nothing; it is weighted accordingly in the
        # update.
        for env_id in evidence.env_ids:
            self._is_forced[env_id] = sum(legality[env_id]) == 1
        self.tally.add_legality(legality, [env is not None for env in evidence.envs])
        choice = self.controller.choose(
            Situation(
                round=evidence.round,
                step=evidence.step,
                observations=observed,
                masks=masks,
                envs=evidence.envs,
            )
        )
        is_last = is_last_step(evidence.step, self.num_steps)
        return StepDecision(
            round=evidence.round,
            step=evidence.step,
            is_last_step=is_last,
            is_truncated=is_last and self.scheme.episode_end is EpisodeEnd.BOOTSTRAP,
            actions=choice.actions,
            details=choice.details,
            previous_rewards=tuple(self._previous_rewards),
        )

    def record(
        self, evidence: StepEvidence, decision: StepDecision, outcome: StepOutcome
    ) -> StepRecord:
        """Compute the rewards of a step and add it to the rollout."""
        # Not while decisions are made, whose order depends on which workers are the first.
        self._close_failed(evidence.envs)
        self._close_failed(outcome.envs)
        penalties: list[PenaltyOutcome | None] = [None] * self.num_envs
        rewards: list[float | None] = [None] * self.num_envs
        components: list[RewardComponents | None] = [None] * self.num_envs
        alarms: list[tuple[int, RewardHackingSuspected]] = []
        for seen, done in zip(evidence.envs, outcome.envs, strict=True):
            if seen is None or done is None:
                continue
            # Part of the next observation, for a rolled-back env too.
            self._feedback[done.env_id] = ActionFeedback(
                op=done.outcome.effective_op, has_succeeded=done.outcome.succeeded
            )
            if done.rollback is not None:
                # The env did not act in this step, so there is no reward to compute.
                penalties[done.env_id] = self._roll_back(seen, done)
                continue
            self.tally.add_outcome(done)
            result = self.ledgers[done.env_id].reward(seen, done)
            self.tally.add_reward(result.components)
            rewards[done.env_id] = result.total
            components[done.env_id] = result.components
            alarms += [(done.env_id, _suspicion(found)) for found in result.suspicions]
        # Sent to the envs with the next decision: they count rewards per slot, but do not know
        # them.
        self._previous_rewards = rewards
        # Before the episodes end, because termination and bootstrapping mark the last row of the
        # rollout.
        self._remember(evidence, outcome, rewards)
        if decision.is_last_step:
            self._end_episodes(outcome, is_truncated=decision.is_truncated)
        return StepRecord(
            rewards=tuple(rewards),
            components=tuple(components),
            is_forced=tuple(self._is_forced),
            penalties=tuple(penalties),
            alarms=tuple(alarms),
            ended=self._take_ended(),
        )

    def learn(self) -> RoundResult:
        """Update the controller on the finished round."""
        learner, began_s = self.learner, time.perf_counter()
        metrics = None
        if learner is not None:
            metrics = learner.learn(self.updates_per_round, self.check_cancelled)
        return RoundResult(
            # In env order, not in the order in which they ended.
            episodes=tuple(self._episodes[env_id] for env_id in range(self.num_envs)),
            metrics=metrics,
            tally=self.tally,
            slots=summed_activity([ledger.slots for ledger in self.ledgers], self.rules.slot_ids),
            reward_scale=None if learner is None else float(learner.reward_normalizer.scale),
            rollback_attempts=self._num_rollbacks,
            unattributed_penalties=self._num_unattributed,
            update_ms=1e3 * (time.perf_counter() - began_s),
        )

    def _observe(
        self,
        signals: Sequence[TrainingSignals | None],
        reports: Sequence[Sequence[SeedReport]],
    ) -> ObservationBatch:
        shown = [_BLANK if item is None else item for item in signals]
        return batch_signals_to_features(self.extractor, shown, reports, self._feedback)

    def _remember(
        self,
        evidence: StepEvidence,
        outcome: StepOutcome,
        rewards: Sequence[float | None],
    ) -> None:
        learner = self.learner
        if learner is None:
            return
        contributions, is_measured = self._contributions(evidence)
        ops = [Op.WAIT if env is None else env.outcome.effective_op for env in outcome.envs]
        learner.remember(
            evidence.step,
            StepFacts(
                effective_ops=ops,
                is_forced=tuple(self._is_forced),
                rewards=[0.0 if reward is None else reward for reward in rewards],
                contributions=contributions,
                is_measured=is_measured,
                env_ids=[env_id for env_id, reward in enumerate(rewards) if reward is not None],
            ),
        )
        # An env knows whether it was rolled back; control owns the tensors and follows it.
        learner.sync_memory([env.lstm_hidden for env in outcome.envs if env is not None])

    def _contributions(self, evidence: StepEvidence) -> tuple[Tensor, Tensor]:
        """Return this step's measured contribution of each slot, for the auxiliary predictor."""
        slot_index = {slot_id: index for index, slot_id in enumerate(self.rules.slot_ids)}
        # Filled as an array: single elements of a tensor are slow to set.
        contributions = np.zeros((self.num_envs, len(slot_index)), dtype=np.float32)
        is_measured = np.zeros_like(contributions, dtype=np.bool_)
        for env_id, env in enumerate(evidence.envs):
            for seed in () if env is None else env.attribution.seeds:
                place = (env_id, slot_index[seed.slot_id])
                contributions[place] = seed.contribution_pp
                is_measured[place] = True
        return torch.from_numpy(contributions), torch.from_numpy(is_measured)

    def _roll_back(self, evidence: EnvEvidence, outcome: EnvOutcome) -> PenaltyOutcome:
        env_id, amount = outcome.env_id, rollback_penalty(self.death_penalty)
        penalty = self.ledgers[env_id].roll_back(evidence, outcome, amount)
        self._num_rollbacks += 1
        self._num_unattributed += penalty.blamed_step is None
        if self.learner is not None:
            blamed = self.learner.punish(env_id, amount)
            # Two accounts of the same segment, kept for telemetry and for learning; they must never
            # differ.
            assert blamed == penalty, f"env {env_id}: ledger and rollout blame different steps"
        return penalty

    def _end_episodes(self, outcome: StepOutcome, *, is_truncated: bool) -> None:
        for env in outcome.envs:
            if env is not None:
                self._episodes[env.env_id] = self.ledgers[env.env_id].record(
                    outcome=env, success_accuracy_pct=self.success_accuracy_pct
                )
        if self.learner is None:
            return
        if is_truncated:
            self._bootstrap(self.learner, outcome)
        else:
            self.learner.terminate(env.env_id for env in outcome.envs if env is not None)

    def _bootstrap(self, learner: PolicyController, outcome: StepOutcome) -> None:
        targets = outcome.truncated_bootstrap_targets
        if not targets:
            return
        _check_legal(targets, outcome.post_action_masks)
        after = batch_signals_to_features(
            self.extractor,
            outcome.post_action_signals,
            outcome.post_action_slot_reports,
            [self._feedback[env_id] for env_id, _ in targets],
        )
        learner.bootstrap(targets, after)

    def _close_failed(self, envs: Sequence[object | None]) -> None:
        for env_id, env in enumerate(envs):
            # An env that fails is missing from every later message of the round; its episode ends
            # once.
            if env is None and env_id not in self._episodes:
                self._episodes[env_id] = self.ledgers[env_id].record(
                    outcome=None, success_accuracy_pct=self.success_accuracy_pct
                )
                if self.learner is not None:
                    self.learner.give_up(env_id)

    def _take_ended(self) -> tuple[EpisodeRecord, ...]:
        """Return the finished episodes not reported yet, in the order in which they ended."""
        ended = tuple(self._episodes.values())[self._num_reported :]
        self._num_reported = len(self._episodes)
        return ended


def _check_legal(places: Sequence[tuple[int, int]], legal_ops: Sequence[Sequence[bool]]) -> None:
    """Raise for an env and step without a legal op.

    WAIT is always legal, so such a row belongs to no env that can act; a distribution over no
    choice would be meaningless.
    """
    for (env_id, step), row in zip(places, legal_ops, strict=True):
        if not any(row):
            raise ContractError(f"env {env_id}, step {step}: no op is legal")


def _suspicion(found: HackingSuspicion) -> RewardHackingSuspected:
    return RewardHackingSuspected(
        pattern=found.pattern.value,
        slot_id=found.slot_id,
        seed_id=found.seed_id,
        contribution_pp=found.contribution_pp,
        attributed_pp=found.attributed_pp,
        threshold=found.threshold,
    )


_BLANK = TrainingSignals(
    step=0,
    train_loss=0.0,
    train_accuracy_pct=0.0,
    val_loss=0.0,
    val_accuracy_pct=0.0,
    loss_delta=None,
    accuracy_delta_pp=None,
    plateau_steps=0,
    stable_steps=0,
    is_stabilized=False,
    best_val_accuracy_pct=0.0,
    loss_history=(),
    accuracy_history=(),
)
"""Placeholder observation of a failed env; its row is excluded from the rollout."""
