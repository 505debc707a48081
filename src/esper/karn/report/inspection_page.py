"""The HTML page of an inspection: tables and a plot of what a policy reacts to."""

from html import escape

from esper.karn.report.comparison_page import html_table, report_page
from esper.karn.report.comparison_plots import Plot, colour_of
from esper.karn.report.comparison_tables import Table, estimate_text
from esper.leyline.inspection import InspectionReport

__all__ = ["inspection_page", "sabotage_table", "shifts_table"]


def inspection_page(report: InspectionReport) -> str:
    """Return a page that shows an inspection, with plotly's script embedded."""
    setting = (
        f"{report.policy} on {report.task}, greedy actions: {len(report.seeds)} seeds of "
        f"{report.num_envs} envs, {report.num_decisions} decisions in which a measured seed could "
        "be pruned. Evidence is turned around for the policy's input only: contributions change "
        "their sign, accuracies are mirrored at 50 %, healthy gradients are shown as vanished."
    )
    sabotage = report.sabotage
    body = (
        f"<p>{escape(setting)}</p>"
        f"{html_table('Probability of each op', shifts_table(report))}"
        '<div class="plot" id="shifts"></div>'
        "<h2>Sabotage</h2><p>In every second env the weights of the first useful seed that could "
        f"be pruned from step {sabotage.first_step} on are put into a random order: one that "
        f"contributes {sabotage.min_worth_pp:g} points or more. Shares of these seeds, and of "
        f"those in the other envs, that the policy prunes within {sabotage.window} steps.</p>"
        f"{html_table('Pruned', sabotage_table(report))}"
    )
    return report_page("What the policy acts on", body, [_shifts_plot(report)])


def shifts_table(report: InspectionReport) -> Table:
    """Return how the probability of each op changes with each kind of evidence."""
    rows = [
        (
            shift.evidence,
            shift.op,
            f"{shift.as_seen:.3f}",
            f"{shift.flipped:.3f}",
            f"{shift.shift:+.3f}",
        )
        for shift in report.shifts
    ]
    return Table(("evidence", "op", "as seen", "turned around", "change"), rows)


def sabotage_table(report: InspectionReport) -> Table:
    """Return how many sabotaged and intact seeds were pruned."""
    sabotage = report.sabotage
    row = (
        f"{sabotage.pruned_sabotaged:.2f} of {sabotage.num_sabotaged}",
        f"{sabotage.pruned_intact:.2f} of {sabotage.num_intact}",
        estimate_text(sabotage.difference, 2),
    )
    return Table(("sabotaged", "intact", "difference"), [row])


def _shifts_plot(report: InspectionReport) -> Plot:
    kinds = tuple(dict.fromkeys(shift.evidence for shift in report.shifts))
    data = [
        {
            "type": "bar",
            "name": kind,
            "x": [shift.op for shift in report.shifts if shift.evidence == kind],
            "y": [shift.shift for shift in report.shifts if shift.evidence == kind],
            "marker": {"color": colour_of(index)},
        }
        for index, kind in enumerate(kinds)
    ]
    layout = {
        "barmode": "group",
        "yaxis": {"title": {"text": "change of the probability"}},
        "legend": {"orientation": "h"},
    }
    return Plot(id="shifts", data=list(data), layout=layout)
