"""The summary of a finished run that `--json` prints."""

from typing import TYPE_CHECKING

import msgspec

from esper.leyline.reports import BatchSummary

if TYPE_CHECKING:
    from esper.simic.training.run_result import TrainingResult

__all__ = ["RunSummary", "summary_of"]


class BlueprintRow(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and mean contribution of one blueprint's seeds."""

    blueprint: str
    germinated: int
    fossilized: int
    pruned: int
    mean_contribution_pp: float | None


class RoundRow(msgspec.Struct, frozen=True, kw_only=True):
    """One round."""

    round: int
    mean_accuracy_pct: float | None
    mean_reward: float
    mean_task_return: float
    fossilized: int
    param_ratio: float


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a run."""

    run_dir: str
    rounds: tuple[RoundRow, ...]
    """The last 1,000 at most."""
    grown: tuple[BlueprintRow, ...]
    final_accuracy_pct: float | None
    best_accuracy_pct: float | None
    duration_s: float
    traces_dir: str | None
    data_note: str | None


def summary_of(result: "TrainingResult") -> RunSummary:
    """Return the summary of a run."""
    return RunSummary(
        run_dir=str(result.run_dir),
        rounds=tuple(_round_row(summary) for summary in result.history),
        grown=tuple(
            BlueprintRow(
                blueprint=score.blueprint,
                germinated=score.num_germinated,
                fossilized=score.num_fossilized,
                pruned=score.num_pruned,
                mean_contribution_pp=score.mean_contribution_pp,
            )
            for score in result.state.scoreboard.scores()
        ),
        final_accuracy_pct=result.state.final_accuracy_pct,
        best_accuracy_pct=result.state.best_accuracy_pct,
        duration_s=result.state.duration_s,
        traces_dir=None if result.traces_dir is None else str(result.traces_dir),
        data_note=result.data_note,
    )


def _round_row(summary: BatchSummary) -> RoundRow:
    episodes = summary.episodes
    return RoundRow(
        round=summary.round,
        mean_accuracy_pct=summary.mean_accuracy_pct,
        mean_reward=summary.mean_reward,
        mean_task_return=summary.mean_task_return,
        fossilized=sum(record.num_fossilized for record in episodes),
        param_ratio=sum(record.param_ratio for record in episodes) / len(episodes),
    )
