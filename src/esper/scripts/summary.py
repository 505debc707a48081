"""What a finished run says on the terminal, or to a program."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from esper.leyline.reports import BatchSummary

if TYPE_CHECKING:
    from esper.simic.training.vectorized import TrainingResult

__all__ = ["RunSummary", "summary_of", "summary_lines"]


class BlueprintRow(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one blueprint's seeds."""

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
    fossilized: int
    param_ratio: float


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a few numbers."""

    run_dir: str
    rounds: tuple[RoundRow, ...]
    grown: tuple[BlueprintRow, ...]
    final_accuracy_pct: float | None
    best_accuracy_pct: float | None
    duration_s: float
    data_note: str | None


def summary_of(result: "TrainingResult") -> RunSummary:
    """Sum a run up."""
    event = result.state.scoreboard.event()
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
            for score in event.blueprints
        ),
        final_accuracy_pct=result.state.final_accuracy_pct,
        best_accuracy_pct=result.state.best_accuracy_pct,
        duration_s=sum(summary.duration_s for summary in result.history),
        data_note=result.data_note,
    )


def _round_row(summary: BatchSummary) -> RoundRow:
    episodes = summary.episodes
    return RoundRow(
        round=summary.round,
        mean_accuracy_pct=summary.mean_accuracy_pct,
        mean_reward=summary.mean_reward,
        fossilized=sum(record.num_fossilized for record in episodes),
        param_ratio=sum(record.param_ratio for record in episodes) / len(episodes),
    )


def summary_lines(summary: RunSummary) -> Iterable[str]:
    """Return the summary as lines of text: rounds, what grew, where the run is."""
    yield from _table(
        ("round", "accuracy", "reward", "fossils", "parameters"),
        [
            (
                str(row.round),
                _number(row.mean_accuracy_pct, " %"),
                f"{row.mean_reward:.2f}",
                str(row.fossilized),
                f"{row.param_ratio:.2f} x host",
            )
            for row in summary.rounds
        ],
    )
    yield ""
    if summary.grown:
        yield "What grew:"
        yield from _table(
            ("blueprint", "germinated", "fossilized", "pruned", "contribution"),
            [
                (
                    row.blueprint,
                    str(row.germinated),
                    str(row.fossilized),
                    str(row.pruned),
                    _number(row.mean_contribution_pp, " pp"),
                )
                for row in summary.grown
            ],
        )
    else:
        yield "Nothing grew."
    yield ""
    yield f"Final accuracy {_number(summary.final_accuracy_pct, ' %')}, best round " + (
        f"{_number(summary.best_accuracy_pct, ' %')}, {summary.duration_s:.0f} s"
    )
    yield f"Run directory: {summary.run_dir}"


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.1f}{unit}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
