"""The HTML page of a comparison: tables and plots in one self-contained file."""

from collections.abc import Sequence
from html import escape
from typing import Final

import msgspec

from esper.karn.report.comparison_plots import Plot, comparison_plots, learning_plots
from esper.karn.report.comparison_tables import (
    FRONT_MARK,
    Table,
    alarms_text,
    contexts_table,
    costs_table,
    differences_table,
    oracle_table,
    scores_table,
    target_table,
)
from esper.karn.web.page import inline_policy, map_styles, plotly_script
from esper.leyline.comparison import ComparisonReport
from esper.leyline.learning import LearningReport

__all__ = ["comparison_page", "html_table", "report_page"]

_STYLE: Final = """
:root { color-scheme: light dark; --bg: #fff; --text: #17212b; --muted: #4b5b6a; --line: #d2dae2 }
@media (prefers-color-scheme: dark) {
  :root { --bg: #0d1217; --text: #e8eef4; --muted: #a3b3c2; --line: #2b3742 }
}
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; font-variant-numeric: tabular-nums;
  background: var(--bg); color: var(--text); max-width: 1132px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2rem }
p { color: var(--muted); overflow-wrap: anywhere }
.scroll { overflow-x: auto }
table { border-collapse: collapse; margin: .5rem 0; font-size: 14px; min-width: 100% }
caption { text-align: left; font-weight: 600 }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap }
th { color: var(--muted); font-weight: 500 }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
  background: var(--bg) }
.words th, .words td { text-align: left; vertical-align: top }
.words td:nth-child(n+5) { white-space: normal; min-width: 9rem }
.words td:nth-child(n+6) { min-width: 18rem }
.plot { height: 420px }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)) }
.grid .plot { height: 220px; min-width: 0 }
@media (max-width: 500px) { body { margin-top: 1rem } .plot { height: 360px } }
"""
_SCRIPT: Final = """
const plots = JSON.parse(document.getElementById("plots").textContent);
const isDark = matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const style = getComputedStyle(document.documentElement);
  const [text, line] = ["--text", "--line"].map((name) => style.getPropertyValue(name).trim());
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  for (const { id, data, layout } of structuredClone(plots)) {
    layout.font = { color: text, size: 12, family: getComputedStyle(document.body).fontFamily };
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.hoverlabel = { bgcolor: style.getPropertyValue("--bg").trim(), font: { color: text } };
    layout.xaxis = { ...axis, ...layout.xaxis };
    layout.yaxis = { ...axis, ...layout.yaxis };
    Plotly.react(id, data, layout, { responsive: true, displayModeBar: false });
  }
}
draw();
isDark.addEventListener("change", draw);
"""


def comparison_page(report: ComparisonReport) -> str:
    """Return a page that shows a comparison, with plotly's script embedded."""
    learning = report.learning
    plots = [*comparison_plots(report), *(learning_plots(learning) if learning else ())]
    title = f"Comparison on {report.task}"
    front = f"Arms ({FRONT_MARK} on the Pareto front of accuracy against parameters)"
    costs = "Growth and cost: means per env, wall-clock time per run"
    body = (
        f"<p>{escape(_setting(report))}</p>"
        f"{html_table(front, scores_table(report))}{html_table(costs, costs_table(report))}"
        f"{_optional_tables(report)}"
        f"{html_table('Differences', differences_table(report))}"
        "<h2>Accuracy, step by step</h2><p>Means over all envs; bands show the interquartile "
        'range.</p><div class="plot" id="curves"></div>'
        "<h2>Accuracy against parameters</h2><p>Stars are on the Pareto front; bars are 95 % "
        'intervals.</p><div class="plot" id="front"></div>'
        f"{_learning_section(learning, plots) if learning else ''}"
    )
    return report_page(title, body, plots)


def report_page(title: str, body: str, plots: Sequence[Plot]) -> str:
    """Return a page with the style of reports, with plotly's script embedded.

    Args:
        title: text of the title.
        body: HTML, with an element for each plot.
        plots: what is drawn into these elements.
    """
    # Escaped, so that a user-chosen name cannot close the script element that contains it.
    encoded = msgspec.json.encode(plots).decode().replace("<", "\\u003c")
    plotly, name = plotly_script(), escape(title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{inline_policy(scripts=(plotly, _SCRIPT), styles=(_STYLE,))}{map_styles()}"
        f"<title>{name}</title><style>{_STYLE}</style></head><body><h1>{name}</h1>"
        f'{body}<script type="application/json" id="plots">{encoded}</script>'
        f"<script>{plotly}</script><script>{_SCRIPT}</script></body></html>\n"
    )


def _optional_tables(report: ComparisonReport) -> str:
    """Return the tables that only some comparisons have."""
    target = "" if report.target_pct is None else f"; the target is {report.target_pct:.0f} %"
    captions = {
        "Against the best schedule of each context: task return": oracle_table(report),
        f"Episodes that reach a target, and when{target}": target_table(report),
        f"By context: means per episode{target}": contexts_table(report),
    }
    return "".join(html_table(caption, table) for caption, table in captions.items() if table.rows)


def _setting(report: ComparisonReport) -> str:
    choices = "greedy actions" if report.is_greedy else "sampled actions"
    # Checkpoint paths are too long for a table column.
    named = [(label, name) for name, label in report.labels().items() if label != name]
    full = "".join(f" {label} is {name}." for label, name in named)
    return (
        f"{len(report.seeds)} seeds of {report.num_envs} envs with {report.num_steps} steps, "
        f"{choices}. Accuracies are of the test split. Figures of runs are interquartile means "
        "with 95 % confidence intervals over policies and seeds; differences are those of means."
        f"{full}"
    )


def _learning_section(learning: LearningReport, plots: Sequence[Plot]) -> str:
    head = ("run", "task", "seed", "rounds", "verdict", "why", "alarms raised")
    rows = [
        (
            run.run_id,
            run.task,
            str(run.seed),
            str(run.num_rounds),
            run.verdict,
            "; ".join(run.reasons),
            alarms_text(run),
        )
        for run in learning.runs
    ]
    return (
        f"<h2>How the policies learned</h2><p>{len(rows)} training runs, round by round: each run, "
        "their mean, and the range between them. The verdict is that of each run's log as of its "
        "last event; alarms are counted over the whole run.</p>"
        f"{html_table('Training runs', Table(head, rows), kind='words')}"
        f"{_grid('growth', plots)}"
        "<h2>Updates of the policies</h2>"
        f"{_grid('update', plots)}"
        "<h2>Entropy of each head</h2><p>As a share of its maximum, over the steps at which the "
        "head had a choice; near 0 it has stopped exploring.</p>"
        f"{_grid('entropy', plots)}"
    )


def _grid(name: str, plots: Sequence[Plot]) -> str:
    cells = "".join(
        f'<div class="plot" id="{escape(plot.id)}"></div>'
        for plot in plots
        if plot.id.startswith(f"{name}-")
    )
    return f'<div class="grid" id="{name}">{cells}</div>'


def html_table(caption: str, table: Table, kind: str = "figures") -> str:
    """Return a table as HTML."""
    cells = "".join(f"<th>{escape(text)}</th>" for text in table.head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in table.rows
    )
    return (
        f'<div class="scroll"><table class="{kind}"><caption>{escape(caption)}</caption>'
        f"<tr>{cells}</tr>{body}</table></div>"
    )
