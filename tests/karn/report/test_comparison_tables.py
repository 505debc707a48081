"""Tables of a comparison: every figure once, with its interval, and a dash where there is none."""

import msgspec
from tests.karn.comparisons import FIGURE, arm, around, comparison, contrast, learning

from esper.karn.report.comparison_tables import (
    FRONT_MARK,
    alarms_text,
    costs_table,
    differences_table,
    estimate_text,
    figure_text,
    scores_table,
    training_table,
)
from esper.leyline.comparison import Estimate

REPORT = comparison(
    arm("ppo:a.pt", is_on_front=True, final_pct=around(86.94, 1.0), total_reward=around(-2.0, 0.5)),
    arm(
        "wait",
        task_return=None,
        num_fossils_measured=4,
        num_fossils_positive=3,
        wall_s=None,
        equal_flops_pct=51.26,
    ),
)


def test_every_row_has_as_many_cells_as_its_header() -> None:
    tables = [
        scores_table(REPORT),
        costs_table(REPORT),
        differences_table(REPORT),
        training_table(learning()),
    ]
    for table in tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.head)}


def test_scores_have_intervals_and_mark_the_front() -> None:
    on_front, other = scores_table(REPORT).rows
    assert on_front[0] == f"ppo {FRONT_MARK}"
    assert other[0] == "wait"
    assert on_front[1] == "86.9 (85.9 to 87.9)"
    assert (on_front[4], other[4]) == ("50.00 (40.00 to 65.00)", "-")
    assert on_front[5] == "-2.0 (-2.5 to -1.5)"


def test_costs_show_what_was_not_measured_as_a_dash() -> None:
    table = costs_table(REPORT)
    first, second = (dict(zip(table.head, row, strict=True)) for row in table.rows)
    assert (first["useful fossils"], second["useful fossils"]) == ("-", "3 of 4 (75.0 %)")
    assert (first["wall, s"], second["wall, s"]) == ("2.0", "-")
    assert (first["at equal FLOP, %"], second["at equal FLOP, %"]) == ("-", "51.3")


def test_differences_may_be_restricted_to_some_pairs() -> None:
    only = contrast("wait", "ppo:a.pt", around(-3.0, 0.25))
    assert len(differences_table(REPORT).rows) == 1
    assert differences_table(REPORT, ()).rows == []

    [row] = differences_table(REPORT, (only,)).rows
    assert row[0] == "wait - ppo"
    assert row[1] == "-3.0 (-3.2 to -2.8)"
    assert row[3] == "50.00 (40.00 to 65.00)"
    assert row[5] == "0.50 (0.40 to 0.60)"


def test_training_runs_are_listed_with_their_alarms() -> None:
    first, second = training_table(learning()).rows
    assert first == ("0000aaaa", "1", "2", "Finished, the policy learns", "3 KL_SPIKE_DETECTED")
    assert second[-1] == "none"


def test_several_alarms_are_separated_by_commas() -> None:
    run = msgspec.structs.replace(learning().runs[0], alarms={"A": 1, "B": 2})
    assert alarms_text(run) == "1 A, 2 B"


def test_figures_have_the_digits_that_were_asked_for() -> None:
    assert estimate_text(FIGURE) == "50.0 (40.0 to 65.0)"
    assert estimate_text(Estimate(value=0.126, low=0.1, high=0.2), 2) == "0.13 (0.10 to 0.20)"
    assert (figure_text(None), figure_text(0.0)) == ("-", "0.0")
