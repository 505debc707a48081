"""The state of a run between rounds, apart from the policy; part of every checkpoint."""

import math
import statistics
from collections.abc import Callable
from typing import Final

import msgspec

from esper.leyline.messages import StepEvidence
from esper.leyline.reports import BatchSummary, EpisodeStatus
from esper.simic.seed_management import Escalation
from esper.simic.telemetry.anomaly import AnomalyState
from esper.simic.telemetry.scoreboard import Scoreboard

__all__ = ["BestEnv", "RunState", "best_env_of"]

ROLLING_ROUNDS: Final = 10
HISTORY_ROUNDS: Final = 1_000
"""Bounds the history, so that checkpoints do not grow with the run; the log has every round."""


class BestEnv(msgspec.Struct, frozen=True, kw_only=True):
    """The env with the best network so far, and its score."""

    round: int
    env_id: int
    score: float
    """Accuracy in percent or, for language models, the negative loss; more is better."""


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """Counters, rolling accuracy, best results and history."""

    rounds_completed: int = 0
    episodes_completed: int = 0
    recent_accuracies_pct: tuple[float, ...] = ()
    """Mean final accuracy of the last rounds, oldest first."""
    rolling_accuracy_pct: float | None = None
    best_accuracy_pct: float | None = None
    """Highest round mean so far."""
    best_loss: float | None = None
    """Lowest round mean of the final losses so far."""
    best_env: BestEnv | None = None
    """The env whose network is saved as the run's grown network."""
    final_accuracy_pct: float | None = None
    anomalies: AnomalyState = AnomalyState()
    scoreboard: Scoreboard = Scoreboard()
    escalation: Escalation = Escalation()
    history: tuple[BatchSummary, ...] = ()
    """The last rounds, oldest first."""
    duration_s: float = 0.0
    """Total over all rounds."""

    def rolling_with(self, accuracy_pct: float | None) -> float | None:
        """Return the rolling mean accuracy including a round of this accuracy."""
        window = self._window_with(accuracy_pct)
        return statistics.fmean(window) if window else None

    def after_round(self, summary: BatchSummary) -> "RunState":
        """Return the state after a round."""
        accuracy, loss = summary.mean_accuracy_pct, _mean_loss(summary)
        return msgspec.structs.replace(
            self,
            rounds_completed=summary.round + 1,
            episodes_completed=self.episodes_completed + len(summary.episodes),
            recent_accuracies_pct=self._window_with(accuracy),
            rolling_accuracy_pct=summary.rolling_accuracy_pct,
            best_accuracy_pct=_best(max, self.best_accuracy_pct, accuracy),
            best_loss=_best(min, self.best_loss, loss),
            final_accuracy_pct=accuracy,
            history=(*self.history, summary)[-HISTORY_ROUNDS:],
            duration_s=self.duration_s + summary.duration_s,
        )

    def is_best(self, summary: BatchSummary, *, by_loss: bool) -> bool:
        """Return whether a round is the best so far by accuracy, or by loss (language models)."""
        if by_loss:
            loss = _mean_loss(summary)
            return loss is not None and (self.best_loss is None or loss < self.best_loss)
        accuracy = summary.mean_accuracy_pct
        known = self.best_accuracy_pct
        return accuracy is not None and (known is None or accuracy > known)

    def _window_with(self, accuracy_pct: float | None) -> tuple[float, ...]:
        added = () if accuracy_pct is None else (accuracy_pct,)
        return (*self.recent_accuracies_pct, *added)[-ROLLING_ROUNDS:]


def best_env_of(evidence: StepEvidence, *, by_loss: bool) -> BestEnv | None:
    """Return the best env with a finite score; the first one on ties."""
    scores = {
        env.env_id: -env.signals.val_loss if by_loss else env.signals.val_accuracy_pct
        for env in evidence.envs
        # A network that is about to be rolled back is not worth keeping, whatever its accuracy.
        if env is not None and env.panic is None
    }
    finite = {env_id: score for env_id, score in scores.items() if math.isfinite(score)}
    if not finite:
        return None
    # max returns the first of equals, and envs are in order: the choice does not depend on lanes.
    env_id = max(finite, key=lambda item: finite[item])
    return BestEnv(round=evidence.round, env_id=env_id, score=finite[env_id])


def _mean_loss(summary: BatchSummary) -> float | None:
    """Return the mean final loss of the envs that reached their last step, if it is finite."""
    losses = [
        record.final_loss
        for record in summary.episodes
        if record.final_loss is not None and record.status is not EpisodeStatus.FAILED
    ]
    mean = statistics.fmean(losses) if losses else None
    return mean if mean is not None and math.isfinite(mean) else None


def _best(
    choose: Callable[[list[float]], float], known: float | None, new: float | None
) -> float | None:
    measured = [value for value in (known, new) if value is not None]
    return choose(measured) if measured else None
