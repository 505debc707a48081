"""The state of one env in its current episode, for the env grid and the drill-down."""

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from esper.karn.view.snapshot import (
    ActionView,
    CoalitionView,
    EnvDetail,
    EnvView,
    OutcomeView,
    SegmentView,
    SlotView,
)
from esper.karn.view.thresholds import LIMITS, Grade, grade
from esper.leyline import payloads
from esper.leyline.context_payloads import EpisodeContextDrawn
from esper.leyline.stages import ACTIVE_STAGES, Stage

__all__ = ["EnvTrack"]

EMPTY = Stage.DORMANT.name
ACTIVE = frozenset(stage.name for stage in ACTIVE_STAGES)
"""Stages in which a slot has a seed with contribution and gradients to measure."""


@dataclass(eq=False, slots=True)
class _Stretch:
    """Consecutive steps that a slot spends in one stage; may still be extended."""

    stage: str
    blueprint: str | None
    first_step: int
    alphas: list[float | None]


@dataclass(eq=False, slots=True)
class _Episode:
    """State that is reset when the next episode begins."""

    episode_id: int | None = None
    round: int | None = None
    step: int | None = None
    context: str | None = None
    loss: float | None = None
    best_accuracy_pct: float | None = None
    best_step: int | None = None
    steps: deque[int] = field(default_factory=lambda: deque(maxlen=LIMITS.max_history))
    accuracies: deque[float | None] = field(
        default_factory=lambda: deque(maxlen=LIMITS.max_history)
    )
    rewards: deque[float | None] = field(default_factory=lambda: deque(maxlen=LIMITS.max_history))
    total_reward: float | None = None
    task_return: float | None = None
    slots: dict[str, SlotView] = field(default_factory=dict)
    lanes: dict[str, list[_Stretch]] = field(default_factory=dict)
    actions: deque[ActionView] = field(default_factory=lambda: deque(maxlen=LIMITS.max_actions))
    components: dict[str, float] = field(default_factory=dict)
    matrix: payloads.CounterfactualMatrixComputed | None = None
    matrix_step: int | None = None
    unavailable_reason: str | None = None
    shapley: dict[str, float | None] = field(default_factory=dict)
    num_germinated: int = 0
    num_pruned: int = 0
    num_fossilized: int = 0
    num_rollbacks: int = 0
    failure: str | None = None
    outcome: OutcomeView | None = None


class EnvTrack:
    """Tracks one env; a new episode id resets everything except the previous outcome."""

    def __init__(self, env_id: int, slot_ids: tuple[str, ...]) -> None:
        self.env_id = env_id
        self.previous: OutcomeView | None = None
        self._slot_ids = slot_ids
        self._now = _Episode()

    def enter(self, episode_id: int | None, round_index: int | None, step: int | None) -> None:
        """Update the position from an event, and reset the state if its episode is new."""
        if episode_id is not None and episode_id != self._now.episode_id:
            self.previous = self._now.outcome or self.previous
            self._now = _Episode(episode_id=episode_id, round=round_index)
        if step is not None:
            self._now.step = step

    # --- Events ----------------------------------------------------------------------------------

    def note_context(self, data: EpisodeContextDrawn) -> None:
        """Record the variant of the task that the episode takes place in."""
        self._now.context = data.context

    def note_epoch(self, data: payloads.EpochCompleted) -> None:
        """Update accuracy, loss and the state of all slots."""
        now = self._now
        step = now.step or 0
        now.loss = data.val_loss
        now.steps.append(step)
        now.accuracies.append(data.val_accuracy_pct)
        now.rewards.append(None)
        accuracy = data.val_accuracy_pct
        if accuracy is not None and accuracy > (now.best_accuracy_pct or float("-inf")):
            now.best_accuracy_pct, now.best_step = accuracy, step
        now.slots = {seed.slot_id: _slot_view(seed) for seed in data.seeds}
        for slot_id in self._slot_ids:
            self._extend_lane(slot_id, step)

    def _extend_lane(self, slot_id: str, step: int) -> None:
        """Add this step to a slot's swim-lane; a new stage or blueprint starts a new stretch."""
        slot = self._now.slots.get(slot_id) or _empty_slot(slot_id)
        lane = self._now.lanes.setdefault(slot_id, [])
        last = lane[-1] if lane else None
        if last is None or (last.stage, last.blueprint) != (slot.stage, slot.blueprint):
            lane.append(_Stretch(slot.stage, slot.blueprint, step, [slot.alpha]))
            if len(lane) > LIMITS.max_history:
                del lane[0]
        elif last.first_step + len(last.alphas) <= step:
            last.alphas.append(slot.alpha)

    def note_action(self, data: payloads.LastAction) -> None:
        """Record the action of this step and its reward."""
        now = self._now
        head = data.heads.get("op")
        now.actions.append(
            ActionView(
                step=now.step,
                op=data.op,
                slot_id=data.slot_id,
                blueprint=data.blueprint,
                succeeded=data.succeeded,
                is_forced=data.is_forced,
                note=data.veto_reason or data.failure_reason,
                reward=data.reward,
                confidence=head.confidence if head else None,
            )
        )
        if now.steps and now.steps[-1] == now.step:
            now.rewards[-1] = data.reward
        if data.reward is not None:
            now.total_reward = (now.total_reward or 0.0) + data.reward
            task_reward = data.reward - data.reward_components.pbrs
            now.task_return = (now.task_return or 0.0) + task_reward
        for name, value in msgspec.structs.asdict(data.reward_components).items():
            if value:
                now.components[name] = now.components.get(name, 0.0) + value

    def note_matrix(self, data: payloads.CounterfactualMatrixComputed) -> None:
        """Record the accuracies measured for each coalition of seeds."""
        self._now.matrix, self._now.matrix_step = data, self._now.step
        self._now.unavailable_reason = None

    def note_unavailable(self, data: payloads.CounterfactualUnavailable) -> None:
        """Discard the coalition accuracies, because the latest measurement failed."""
        self._now.matrix = self._now.matrix_step = None
        self._now.unavailable_reason = data.reason

    def note_shapley(self, data: payloads.ShapleyComputed) -> None:
        """Record the Shapley values."""
        self._now.shapley = {value.slot_id: value.mean_pp for value in data.values}

    def note_germinated(self, data: payloads.SeedGerminated) -> None:
        """Record a new seed, so that it is visible before the next validation."""
        self._now.num_germinated += 1
        self._now.slots[data.slot_id] = msgspec.structs.replace(
            _empty_slot(data.slot_id),
            stage=Stage.GERMINATED.name,
            blueprint=data.blueprint,
            alpha=0.0,
            steps_in_stage=0,
        )

    def note_stage(self, data: payloads.SeedStageChanged) -> None:
        """Record a stage change, so that it is visible before the next validation."""
        if data.to_stage == EMPTY:
            self._now.slots.pop(data.slot_id, None)
            return
        slot = self._now.slots.get(data.slot_id) or _empty_slot(data.slot_id)
        self._now.slots[data.slot_id] = msgspec.structs.replace(
            slot, stage=data.to_stage, alpha=data.alpha, steps_in_stage=0
        )

    def note_fossilized(self) -> None:
        """Count a fossilized seed."""
        self._now.num_fossilized += 1

    def note_pruned(self) -> None:
        """Count a pruned seed."""
        self._now.num_pruned += 1

    def note_rollback(self) -> None:
        """Count a rollback."""
        self._now.num_rollbacks += 1

    def note_failure(self, data: payloads.EnvFailed) -> None:
        """Record why the env was quarantined."""
        self._now.failure = f"{data.error_type} in {data.phase}: {data.message}"

    def note_outcome(self, data: payloads.EpisodeOutcome) -> None:
        """Record the outcome of the episode; its total reward includes penalties."""
        self._now.outcome = OutcomeView(
            status=data.status,
            final_accuracy_pct=data.final_accuracy_pct,
            best_accuracy_pct=data.best_accuracy_pct,
            total_reward=data.total_reward,
            task_return=data.task_return,
            param_ratio=data.param_ratio,
            num_fossilized=data.num_fossilized,
            num_pruned=data.num_pruned,
            num_rollbacks=data.num_rollbacks,
        )
        self._now.total_reward = data.total_reward
        self._now.task_return = data.task_return

    # --- Views -----------------------------------------------------------------------------------

    @property
    def accuracy_pct(self) -> float | None:
        """Return the accuracy of the latest validation."""
        return self._now.accuracies[-1] if self._now.accuracies else None

    @property
    def episode_id(self) -> int | None:
        """Return the id of the current episode."""
        return self._now.episode_id

    def view(self) -> EnvView:
        """Return the env for the grid."""
        now = self._now
        since_best = 0 if now.best_step is None else (now.step or 0) - now.best_step
        return EnvView(
            env_id=self.env_id,
            episode_id=now.episode_id,
            round=now.round,
            step=now.step,
            context=now.context,
            status=self._status(since_best),
            accuracy_pct=self.accuracy_pct,
            best_accuracy_pct=now.best_accuracy_pct,
            steps_since_best=since_best,
            loss=now.loss,
            sparkline=tuple(now.accuracies)[-LIMITS.sparkline :],
            last_reward=now.actions[-1].reward if now.actions else None,
            total_reward=now.total_reward,
            task_return=now.task_return,
            slots=tuple(now.slots.get(slot) or _empty_slot(slot) for slot in self._slot_ids),
            last_action=now.actions[-1] if now.actions else None,
            num_germinated=now.num_germinated,
            num_pruned=now.num_pruned,
            num_fossilized=now.num_fossilized,
            num_rollbacks=now.num_rollbacks,
            failure=now.failure,
            outcome=now.outcome,
            previous=self.previous,
        )

    def _status(self, since_best: int) -> str:
        now = self._now
        if now.failure is not None:
            return "failed"
        if now.outcome is not None:
            return "done"
        if now.num_rollbacks:
            return "rolled back"
        if self.accuracy_pct is not None and now.best_accuracy_pct is not None:
            drop_pp = now.best_accuracy_pct - self.accuracy_pct
            if grade("drop_from_best", drop_pp) is not Grade.OK:
                return "degraded"
        if grade("steps_without_best", since_best) is not Grade.OK:
            return "stalled"
        return "running"

    def detail(self) -> EnvDetail:
        """Return the env for the drill-down."""
        now, matrix = self._now, self._now.matrix
        return EnvDetail(
            env_id=self.env_id,
            episode_id=now.episode_id,
            steps=tuple(now.steps),
            accuracies_pct=tuple(now.accuracies),
            rewards=tuple(now.rewards),
            lanes={slot: tuple(map(_segment_view, lane)) for slot, lane in now.lanes.items()},
            contributions_pp={
                slot_id: slot.contribution_pp
                for slot_id, slot in sorted(now.slots.items())
                if slot.stage in ACTIVE
            },
            shapley_pp=now.shapley,
            coalitions=tuple(
                CoalitionView(seeds_on=item.seeds_on, accuracy_pct=item.accuracy_pct)
                for item in (matrix.coalitions if matrix else ())
            ),
            coalitions_step=now.matrix_step,
            unavailable_reason=now.unavailable_reason,
            committed_accuracy_pct=matrix.committed_accuracy_pct if matrix else None,
            reward_components=dict(now.components),
            actions=tuple(now.actions),
        )


def _segment_view(stretch: _Stretch) -> SegmentView:
    return SegmentView(
        stage=stretch.stage,
        blueprint=stretch.blueprint,
        first_step=stretch.first_step,
        last_step=stretch.first_step + len(stretch.alphas) - 1,
        alphas=tuple(stretch.alphas),
    )


@lru_cache(128)
def _empty_slot(slot_id: str) -> SlotView:
    return SlotView(
        slot_id=slot_id,
        stage=EMPTY,
        blueprint=None,
        alpha=None,
        steps_in_stage=None,
        contribution_pp=None,
        gradient_health=None,
        has_gradient_trouble=None,
    )


def _slot_view(seed: payloads.SeedSnapshot) -> SlotView:
    flags = (seed.has_vanishing_gradient, seed.has_exploding_gradient)
    # The payload keeps the last measured values after pruning; a slot in cooldown has no gradient.
    is_measured = seed.stage in ACTIVE and None not in flags
    return SlotView(
        slot_id=seed.slot_id,
        stage=seed.stage,
        blueprint=seed.blueprint,
        alpha=seed.alpha,
        steps_in_stage=seed.steps_in_stage,
        contribution_pp=seed.contribution_pp,
        gradient_health=seed.gradient_health if is_measured else None,
        has_gradient_trouble=any(flags) if is_measured else None,
    )
