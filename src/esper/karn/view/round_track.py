"""Rows per round, and per step of the current round, bounded in number by thinning."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from esper.karn.view.change_versions import ChangeVersions
from esper.karn.view.snapshot import ActionMix, HeadView, PolicyView, RoundView, StepView
from esper.karn.view.thresholds import LIMITS
from esper.leyline import payloads

__all__ = ["RoundTrack", "StepTrack"]

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class RoundTrack:
    """Holds one row per round; above a limit, the older half is thinned."""

    marks: ChangeVersions = field(default_factory=ChangeVersions)
    rows: dict[int, RoundView] = field(default_factory=dict)
    best_mean_pct: float | None = None
    """Best mean accuracy of any round, including thinned rounds."""

    def _update(self, round_index: int, version: int, **changes: object) -> None:
        if round_index not in self.rows:
            self.rows[round_index] = RoundView(round=round_index)
        self.rows[round_index] = msgspec.structs.replace(self.rows[round_index], **changes)
        self.marks.touch(round_index, version)
        _thin(self.rows, self.marks, version)

    def note_batch(self, index: int, data: payloads.BatchEpochCompleted, version: int) -> None:
        """Record accuracies and rewards over the envs."""
        mean = data.mean_accuracy_pct
        if mean is not None:
            self.best_mean_pct = (
                mean if self.best_mean_pct is None else max(self.best_mean_pct, mean)
            )
        accuracies = _measured(data.env_accuracies_pct)
        rewards = _measured(data.env_rewards)
        self._update(
            index,
            version,
            mean_accuracy_pct=mean,
            low_accuracy_pct=min(accuracies, default=None),
            high_accuracy_pct=max(accuracies, default=None),
            rolling_accuracy_pct=data.rolling_accuracy_pct,
            mean_reward=data.mean_reward,
            mean_task_return=data.mean_task_return,
            low_reward=min(rewards, default=None),
            high_reward=max(rewards, default=None),
        )

    def note_stats(self, index: int, data: payloads.BatchStats, version: int) -> None:
        """Record growth and whether the policy was updated."""
        self._update(
            index,
            version,
            num_germinated=data.seeds_germinated,
            num_fossilized=data.seeds_fossilized,
            num_pruned=data.seeds_pruned,
            is_update_performed=data.update_performed,
            skip_reason=data.skip_reason,
        )

    def note_actions(self, index: int, data: payloads.ActionDistribution, version: int) -> None:
        """Record the action mix."""
        mix = ActionMix(counts=data.counts, successes=data.successes)
        self._update(index, version, actions=mix)

    def note_update(self, index: int, data: payloads.PPOUpdateCompleted, version: int) -> None:
        """Record the metrics of the policy's update."""
        self._update(index, version, policy=_policy_view(data))

    def note_throughput(self, index: int, data: payloads.Throughput, version: int) -> None:
        """Record the throughput of the round."""
        self._update(
            index,
            version,
            env_steps_per_s=data.env_steps_per_s,
            feeder_wait_s=data.feeder_wait_s,
            duration_s=data.duration_s,
        )

    def count_failure(self, index: int, version: int) -> None:
        """Count an env that was quarantined."""
        self._update(index, version, num_failed=self._count(index, "num_failed") + 1)

    def count_rollback(self, index: int, version: int) -> None:
        """Count a rollback."""
        self._update(index, version, num_rollbacks=self._count(index, "num_rollbacks") + 1)

    def _count(self, index: int, name: str) -> int:
        row = self.rows.get(index)
        return 0 if row is None else int(getattr(row, name))

    def complete(self) -> list[RoundView]:
        """Return the completed rounds in order."""
        return [row for row in self.rows.values() if row.mean_reward is not None]

    def latest_policy(self) -> PolicyView | None:
        """Return the latest policy update."""
        updates = (row.policy for row in reversed(self.rows.values()) if row.policy is not None)
        return next(updates, None)


@dataclass(eq=False, slots=True)
class StepTrack:
    """Tracks mean and range of the accuracies per step; reset at the start of each round."""

    marks: ChangeVersions = field(default_factory=ChangeVersions)
    round: int | None = None
    rows: dict[int, StepView] = field(default_factory=dict)

    def note(self, round_index: int, step: int, accuracy_pct: float | None, version: int) -> None:
        """Add one env's accuracy to the running mean of its step."""
        if round_index != self.round:
            self.marks.drop(list(self.rows), version)
            self.rows.clear()
            self.round = round_index
        if accuracy_pct is None:
            return
        row = self.rows.get(step)
        num_envs = row.num_envs + 1 if row else 1
        before = row.mean_accuracy_pct if row else accuracy_pct
        self.rows[step] = StepView(
            step=step,
            num_envs=num_envs,
            mean_accuracy_pct=before + (accuracy_pct - before) / num_envs,
            low_accuracy_pct=min(row.low_accuracy_pct, accuracy_pct) if row else accuracy_pct,
            high_accuracy_pct=max(row.high_accuracy_pct, accuracy_pct) if row else accuracy_pct,
        )
        self.marks.touch(step, version)
        _thin(self.rows, self.marks, version)


def _thin(rows: dict[int, T], marks: ChangeVersions, version: int) -> None:
    """Above the limit, drop every second row of the older half; recent rows are all kept."""
    if len(rows) > LIMITS.max_rounds:
        dropped = list(rows)[1 : LIMITS.max_rounds // 2 : 2]
        for key in dropped:
            del rows[key]
        marks.drop(dropped, version)


def _measured(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _policy_view(data: payloads.PPOUpdateCompleted) -> PolicyView:
    return PolicyView(
        kl_divergence=data.kl_divergence,
        clip_fraction=data.clip_fraction,
        value_nrmse=data.value_nrmse,
        explained_variance=data.explained_variance,
        has_low_return_variance=data.has_low_return_variance,
        gradient_norm=data.gradient_norm,
        policy_loss=data.policy_loss,
        value_loss=data.value_loss,
        entropy=data.entropy,
        ratio_max=data.ratio_max,
        learning_rate=data.learning_rate,
        entropy_coef=data.entropy_coef,
        kl_stop_epoch=data.kl_stop_epoch,
        num_optimizer_steps=data.num_optimizer_steps,
        update_ms=data.update_ms,
        heads={
            name: HeadView(
                entropy=head.entropy,
                learnable_fraction=head.learnable_fraction,
                gradient_norm=head.gradient_norm,
            )
            for name, head in data.heads.items()
        },
    )
