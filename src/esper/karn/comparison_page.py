"""The page of a comparison: tables and plots in one file that needs no server."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Final, TypeAlias

import msgspec

from esper.leyline.comparison import ArmSummary, ComparisonReport, Contrast, Estimate

__all__ = ["comparison_page", "estimate_text"]

_Json: TypeAlias = Mapping[str, object]
"""What plotly takes, in its own words."""

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } caption { text-align: left; font-weight: 600 }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ccc }
th:first-child, td:first-child { text-align: left }
.plot { height: 420px }
"""
_SCRIPT: Final = """
for (const plot of JSON.parse(document.getElementById("plots").textContent))
  Plotly.newPlot(plot.id, plot.data, plot.layout, {responsive: true, displaylogo: false});
"""


def estimate_text(estimate: Estimate, digits: int = 1) -> str:
    """Write a figure with its interval."""
    value, low, high = (
        f"{number:.{digits}f}" for number in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low} to {high})"


def comparison_page(report: ComparisonReport) -> str:
    """Return a page that shows a comparison, plotly's script inside it."""
    plotly = files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    # A name that a user chose must not end the script element that carries it.
    plots = msgspec.json.encode(_plots(report)).decode().replace("<", "\\u003c")
    title = f"Who grows best on {escape(report.task)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>{escape(_setting(report))}</p>"
        f"{_arms_table(report.arms)}{_contrasts_table(report.contrasts)}"
        '<h2>Accuracy, step by step</h2><div class="plot" id="curves"></div>'
        '<h2>Accuracy against parameters</h2><div class="plot" id="front"></div>'
        f'<script type="application/json" id="plots">{plots}</script>'
        f"<script>{plotly}</script><script>{_SCRIPT}</script></body></html>\n"
    )


def _setting(report: ComparisonReport) -> str:
    choices = "likeliest choices" if report.is_greedy else "sampled choices"
    return (
        f"{len(report.seeds)} seeds of {report.num_envs} envs with {report.num_steps} steps, "
        f"{choices}. Accuracies are of the test split. Figures of runs are interquartile means "
        "with 95 % bootstrap intervals over runs; differences are means over runs of the same seed."
    )


def _arms_table(arms: tuple[ArmSummary, ...]) -> str:
    head = (
        "arm",
        "runs",
        "final accuracy, %",
        "best accuracy, %",
        "mean over steps, %",
        "return",
        "parameters added",
        "training GFLOP",
        "wall-clock, s",
        "germinated",
        "fossilized",
        "pruned",
        "useful fossils, %",
        "at equal FLOP, %",
    )
    rows = [
        (
            arm.arm + (" *" if arm.is_on_front else ""),
            str(arm.num_runs),
            estimate_text(arm.final_pct),
            estimate_text(arm.best_pct),
            estimate_text(arm.mean_pct),
            estimate_text(arm.total_reward),
            f"{arm.num_params_added:.0f}",
            f"{arm.train_gflops:.2f}",
            f"{arm.wall_s:.1f}",
            f"{arm.num_germinated:.2f}",
            f"{arm.num_fossilized:.2f}",
            f"{arm.num_pruned:.2f}",
            _optional(arm.positive_fossils_pct),
            _optional(arm.equal_flops_pct),
        )
        for arm in arms
    ]
    return _table("Arms (* on the Pareto front of accuracy against parameters)", head, rows)


def _contrasts_table(contrasts: tuple[Contrast, ...]) -> str:
    head = ("difference", "final accuracy, pp", "mean over steps, pp", "return", "P(better)")
    rows = [
        (
            f"{contrast.first} - {contrast.second}",
            estimate_text(contrast.final_pp),
            estimate_text(contrast.mean_pp),
            estimate_text(contrast.total_reward),
            estimate_text(contrast.probability, 2),
        )
        for contrast in contrasts
    ]
    return _table("Differences", head, rows)


def _optional(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _table(caption: str, head: tuple[str, ...], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows
    )
    return f"<table><caption>{escape(caption)}</caption><tr>{cells}</tr>{body}</table>"


def _plots(report: ComparisonReport) -> list[_Json]:
    curves: list[_Json] = [
        {"name": arm.arm, "y": arm.curve_pct, "mode": "lines", "type": "scatter"}
        for arm in report.arms
    ]
    points: list[_Json] = [
        {
            "name": arm.arm,
            "x": [arm.num_params_added],
            "y": [arm.final_pct.value],
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [arm.final_pct.high - arm.final_pct.value],
                "arrayminus": [arm.final_pct.value - arm.final_pct.low],
            },
            "mode": "markers",
            "marker": {"size": 12, "symbol": "star" if arm.is_on_front else "circle"},
        }
        for arm in report.arms
    ]
    return [
        {"id": "curves", "data": curves, "layout": _layout("step", "test accuracy, %")},
        {"id": "front", "data": points, "layout": _layout("parameters added", "final accuracy, %")},
    ]


def _layout(x_title: str, y_title: str) -> _Json:
    return {
        "xaxis": {"title": {"text": x_title}},
        "yaxis": {"title": {"text": y_title}},
        "margin": {"t": 20},
    }
