"""Progress of a run: position, rate, estimated time left and usual pauses between events."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from esper.karn.view.snapshot import ProgressView
from esper.karn.view.thresholds import LIMITS
from esper.leyline.payloads import RunFinished, TrainingStarted
from esper.leyline.telemetry import Event

__all__ = ["ProgressTrack"]

MAX_USUAL_PAUSE_S: Final = 300.0
"""Longer pauses come from a resume or a suspended machine, so they are capped at this."""


@dataclass(eq=False, slots=True)
class ProgressTrack:
    """Tracks positions and timestamps; a position counts steps from the start of the run."""

    facts: TrainingStarted | None = None
    finish: RunFinished | None = None
    round: int | None = None
    step: int | None = None
    rounds_completed: int = 0
    episodes_completed: int | None = None
    last_checkpoint_round: int | None = None
    started_ts: float | None = None
    last_ts: float | None = None
    positions: deque[tuple[float, int]] = field(
        default_factory=lambda: deque(maxlen=LIMITS.max_positions)
    )
    longest_pause_s: float = 0.0
    longest_pause_before_s: float = 0.0
    """From the previous round, so that a pause once per round still counts in the next one."""

    def note(self, event: Event) -> None:
        """Update time and position from any event of the run."""
        if self.started_ts is None:
            self.started_ts = event.ts
        if self.last_ts is not None:
            pause_s = min(max(event.ts - self.last_ts, 0.0), MAX_USUAL_PAUSE_S)
            self.longest_pause_s = max(self.longest_pause_s, pause_s)
        self.last_ts = event.ts
        if event.round is None:
            return
        if self.round is None or event.round > self.round:
            self.round, self.step = event.round, event.step
            self.longest_pause_before_s = self.longest_pause_s
            self.longest_pause_s = 0.0
        elif event.round == self.round and event.step is not None:
            self.step = max(event.step, self.step or 0)
        self._note_position(event.ts)

    def complete_rounds(self, count: int, ts: float) -> None:
        """Record that this many rounds are complete."""
        self.rounds_completed = max(self.rounds_completed, count)
        self._note_position(ts)

    def _note_position(self, ts: float) -> None:
        position = self._position()
        if position is not None and (not self.positions or position > self.positions[-1][1]):
            self.positions.append((ts, position))

    def _position(self) -> int | None:
        if self.facts is None:
            return None
        done = self.rounds_completed * self.facts.num_steps
        reached = (self.round or 0) * self.facts.num_steps + (self.step or 0)
        return max(done, reached)

    def _steps_per_s(self) -> float | None:
        """Return the run's steps per second over the recent positions."""
        if len(self.positions) < 2:
            return None
        (first_ts, first), (last_ts, last) = self.positions[0], self.positions[-1]
        return (last - first) / (last_ts - first_ts) if last_ts > first_ts else None

    def view(self, accuracy_pct: float | None, best_accuracy_pct: float | None) -> ProgressView:
        """Return the progress of the run."""
        facts, finish = self.facts, self.finish
        position, rate = self._position(), self._steps_per_s()
        total = None if facts is None else facts.num_rounds * facts.num_steps
        status = "waiting" if facts is None else "running" if finish is None else finish.status
        eta_s = None
        if rate and total is not None and position is not None and finish is None:
            eta_s = max(total - position, 0) / rate
        pause_s = max(self.longest_pause_s, self.longest_pause_before_s)
        has_clock = self.started_ts is not None and self.last_ts is not None
        return ProgressView(
            status=status,
            reason=finish.reason if finish else None,
            round=self.round,
            step=self.step,
            num_rounds=facts.num_rounds if facts else None,
            num_steps=facts.num_steps if facts else None,
            rounds_completed=self.rounds_completed,
            episodes_completed=self.episodes_completed,
            fraction=min(position / total, 1.0) if total and position is not None else None,
            elapsed_s=(self.last_ts or 0.0) - (self.started_ts or 0.0) if has_clock else None,
            eta_s=eta_s,
            steps_per_s=rate * facts.num_envs if rate is not None and facts else None,
            last_event_ts=self.last_ts,
            usual_pause_s=pause_s if has_clock else None,
            accuracy_pct=accuracy_pct,
            best_accuracy_pct=best_accuracy_pct,
            last_checkpoint_round=self.last_checkpoint_round,
            duration_s=finish.duration_s if finish else None,
        )
