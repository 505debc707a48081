"""Learning curves: training runs aligned by round, with mean and range."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final

from esper.karn.view.snapshot import PolicyView, RoundView
from esper.karn.view.view_feed import read_run
from esper.karn.view.view_model import ViewModel
from esper.leyline.errors import UnreadableFileError
from esper.leyline.learning import LearningCurve, LearningReport, TrainingRun
from esper.nissa.reading.run_lookup import find_run

__all__ = ["read_learning"]

MAX_ROUNDS: Final = 1_000_000

_Reading = Callable[[RoundView], float | None]
_ROUND_FIGURES: Final = (
    "mean_accuracy_pct",
    "mean_task_return",
    "mean_reward",
    "num_fossilized",
    "num_pruned",
)
_UPDATE_FIGURES: Final = ("kl_divergence", "value_nrmse", "explained_variance", "entropy")


def read_learning(paths: Sequence[Path]) -> LearningReport:
    """Read the logs of training runs, each given by its run directory or log file."""
    models = [_model_at(path) for path in paths]
    rounds = [{row.round: row for row in model.snapshot().rounds} for model in models]
    readings: dict[str, _Reading] = {name: partial(_of_round, name) for name in _ROUND_FIGURES}
    readings |= {name: partial(_of_update, name) for name in _UPDATE_FIGURES}
    return LearningReport(
        runs=tuple(map(_run_of, models)),
        curves=tuple(_curve(name, read, rounds) for name, read in readings.items()),
        entropies=tuple(
            _curve(head, partial(_of_head, head), rounds) for head in _heads_of(rounds)
        ),
    )


def _model_at(path: Path) -> ViewModel:
    model = read_run(find_run(path))
    view = model.snapshot()
    if view.run is None:
        raise UnreadableFileError(path, "its log has no TRAINING_STARTED event")
    last = max((row.round for row in view.rounds), default=0)
    if last >= MAX_ROUNDS:  # a curve has a place for each
        raise UnreadableFileError(path, f"its log has a round {last}; up to {MAX_ROUNDS} are drawn")
    return model


def _run_of(model: ViewModel) -> TrainingRun:
    view = model.snapshot()
    assert view.run is not None, "_model_at rejects logs without a run"
    return TrainingRun(
        run_id=view.run.run_id,
        task=view.run.facts.task,
        seed=view.run.facts.seed,
        num_rounds=view.progress.rounds_completed,
        status=view.progress.status,
        verdict=view.verdict.headline,
        reasons=tuple(reason.text for reason in view.verdict.reasons),
        alarms=dict(sorted(model.alarm_counts.items())),
    )


def _of_round(name: str, row: RoundView) -> float | None:
    value: float | None = getattr(row, name)
    return value


def _of_update(name: str, row: RoundView) -> float | None:
    value: float | None = None if row.policy is None else getattr(row.policy, name)
    return value


def _of_head(head: str, row: RoundView) -> float | None:
    view = None if row.policy is None else row.policy.heads.get(head)
    return None if view is None else view.entropy


_Rounds = Sequence[Mapping[int, RoundView]]
"""One mapping per run, keyed by round index."""


def _heads_of(rounds: _Rounds) -> list[str]:
    updates: list[PolicyView] = [
        row.policy for run in rounds for row in run.values() if row.policy is not None
    ]
    return list(dict.fromkeys(head for update in updates for head in update.heads))


def _curve(name: str, read: _Reading, rounds: _Rounds) -> LearningCurve:
    runs = [_series(read, run) for run in rounds]
    longest = max(map(len, runs), default=0)
    seen = [
        [value for run in runs if index < len(run) and (value := run[index]) is not None]
        for index in range(longest)
    ]
    return LearningCurve(
        name=name,
        runs=tuple(runs),
        mean=tuple(fmean(values) if values else None for values in seen),
        low=tuple(min(values, default=None) for values in seen),
        high=tuple(max(values, default=None) for values in seen),
    )


def _series(read: _Reading, run: Mapping[int, RoundView]) -> tuple[float | None, ...]:
    """Return a run's values by round, up to the last round that has a value."""
    values = {index: value for index, row in run.items() if (value := read(row)) is not None}
    return tuple(values.get(index) for index in range(max(values, default=-1) + 1))
