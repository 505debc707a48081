"""The tables of a comparison as text cells, for console, page and document."""

from collections.abc import Sequence
from typing import NamedTuple

from esper.leyline.comparison import ArmSummary, ComparisonReport, Contrast, Estimate
from esper.leyline.learning import LearningReport, TrainingRun

__all__ = [
    "FRONT_MARK",
    "Table",
    "alarms_text",
    "contexts_table",
    "costs_table",
    "differences_table",
    "estimate_text",
    "figure_text",
    "oracle_table",
    "scores_table",
    "target_table",
    "training_table",
]

FRONT_MARK = "*"
"""Marks arms on the Pareto front of accuracy against parameters."""


class Table(NamedTuple):
    """A header and rows with the same number of cells."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def scores_table(report: ComparisonReport) -> Table:
    """Return the accuracy and return of each arm."""
    labels = report.labels()
    rows = [
        (
            f"{labels[arm.arm]} {FRONT_MARK}" if arm.is_on_front else labels[arm.arm],
            estimate_text(arm.final_pct),
            estimate_text(arm.best_pct),
            estimate_text(arm.mean_pct),
            estimate_text(arm.task_return, 2),
            estimate_text(arm.total_reward),
        )
        for arm in report.arms
    ]
    head = (
        *("arm", "final, %", "best, %", "mean over steps, %"),
        *("task return", "return with shaping"),
    )
    return Table(head, rows)


def costs_table(report: ComparisonReport) -> Table:
    """Return the growth and cost of each arm: means per env, wall-clock time per run."""
    head = (
        *("arm", "parameters", "GFLOP", "at equal FLOP, %", "wall, s"),
        *("germinated", "kept", "pruned", "useful fossils"),
    )
    labels = report.labels()
    rows = [
        (
            labels[arm.arm],
            f"{arm.num_params_added:.0f}",
            f"{arm.train_gflops:.2f}",
            figure_text(arm.equal_flops_pct),
            figure_text(arm.wall_s),
            f"{arm.num_germinated:.2f}",
            f"{arm.num_fossilized:.2f}",
            f"{arm.num_pruned:.2f}",
            _fossils(arm),
        )
        for arm in report.arms
    ]
    return Table(head, rows)


def differences_table(
    report: ComparisonReport, contrasts: Sequence[Contrast] | None = None
) -> Table:
    """Return the differences between pairs of arms; None selects all pairs of the report."""
    labels = report.labels()
    rows = [
        (
            f"{labels[contrast.first]} - {labels[contrast.second]}",
            estimate_text(contrast.final_pp),
            estimate_text(contrast.mean_pp),
            estimate_text(contrast.task_return, 2),
            estimate_text(contrast.total_reward),
            estimate_text(contrast.probability, 2),
        )
        for contrast in (report.contrasts if contrasts is None else contrasts)
    ]
    head = (
        *("difference", "final accuracy, pp", "mean over steps, pp"),
        *("task return", "return with shaping", "P(better)"),
    )
    return Table(head, rows)


def contexts_table(report: ComparisonReport) -> Table:
    """Return the figures of each arm in each context; without rows for a task without contexts."""
    labels = report.labels()
    rows = [
        (
            labels[arm.arm],
            figures.context,
            str(figures.num_episodes),
            f"{figures.final_pct:.1f}",
            f"{figures.task_return:.2f}",
            f"{figures.num_params_added:.0f}",
            f"{figures.train_gflops:.2f}",
            f"{figures.reached_pct:.0f}",
            figure_text(figures.steps_to_target),
        )
        for arm in report.arms
        for figures in arm.contexts
    ]
    head = (
        *("arm", "context", "episodes", "final, %", "task return", "parameters", "GFLOP"),
        *("reached, %", "steps to target"),
    )
    return Table(head, rows)


def target_table(report: ComparisonReport) -> Table:
    """Return how many episodes reached the target accuracy, and when; without rows if unknown."""
    labels = report.labels()
    rows = [
        (labels[arm.arm], f"{arm.reached_pct:.1f}", figure_text(arm.steps_to_target))
        for arm in report.arms
        if arm.reached_pct is not None
    ]
    return Table(("arm", "reached, %", "steps to target"), rows)


def oracle_table(report: ComparisonReport) -> Table:
    """Return how far each arm is from the oracle; without rows where there is no oracle."""
    labels = report.labels()
    rows = [
        (labels[arm.arm], estimate_text(arm.regret, 2), estimate_text(arm.gap_closed, 2))
        for arm in report.arms
        if arm.regret is not None
    ]
    return Table(("arm", "regret against the oracle", "share of the gap closed"), rows)


def training_table(learning: LearningReport) -> Table:
    """Return the verdict and alarms of each policy's training run."""
    rows = [
        (run.run_id, str(run.seed), str(run.num_rounds), run.verdict, alarms_text(run))
        for run in learning.runs
    ]
    return Table(("training run", "seed", "rounds", "verdict of its log", "alarms raised"), rows)


def estimate_text(estimate: Estimate | None, digits: int = 1) -> str:
    """Format an estimate with its interval; it may be missing."""
    if estimate is None:
        return "-"
    value, low, high = (
        f"{number:.{digits}f}" for number in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low} to {high})"


def figure_text(value: float | None) -> str:
    """Format a number that may be missing."""
    return "-" if value is None else f"{value:.1f}"


def alarms_text(run: TrainingRun) -> str:
    """Format the alarms of a training run with their counts."""
    if not run.alarms:
        return "none"
    return ", ".join(f"{count} {name}" for name, count in run.alarms.items())


def _fossils(arm: ArmSummary) -> str:
    if arm.positive_fossils_pct is None:
        return "-"
    share = f"{arm.positive_fossils_pct:.1f} %"
    return f"{arm.num_fossils_positive} of {arm.num_fossils_measured} ({share})"
