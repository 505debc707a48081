"""The plots of a comparison say what its report says."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.karn.comparisons import arm, comparison, curve, learning

from esper.karn.report.comparison_plots import Plot, colour_of, comparison_plots, learning_plots
from esper.karn.report.learning_curves import read_learning

Json = Mapping[str, Any]


def traces(plot: Plot) -> list[Json]:
    return [dict(trace) for trace in plot.data]


@pytest.fixture
def plots() -> dict[str, Plot]:
    report = comparison(arm("ppo:x", is_on_front=True), arm("wait"))
    return {plot.id: plot for plot in comparison_plots(report)}


def test_curve_of_an_arm_lies_in_its_band(plots: dict[str, Plot]) -> None:
    high, low, mean, *_ = traces(plots["curves"])

    assert (high["y"], low["y"], mean["y"]) == ([12.0, 60.0], [9.0, 40.0], [10.0, 50.0])
    assert low["fill"] == "tonexty"
    assert mean["x"] == [1, 2]


def test_point_of_an_arm_shows_its_interval(plots: dict[str, Plot]) -> None:
    _, point, _ = traces(plots["front"])

    assert (point["x"], point["y"]) == ([7.0], [50.0])
    assert point["error_y"]["array"] == [15.0]
    assert point["error_y"]["arrayminus"] == [10.0]


def test_front_joins_the_arms_on_it_from_small_to_large() -> None:
    arms = [arm("a", is_on_front=True, num_params_added=9.0), arm("b"), arm("c", is_on_front=True)]
    _, front = comparison_plots(comparison(*arms))

    assert traces(front)[0]["x"] == [7.0, 9.0]


def test_arm_has_one_colour_in_every_plot(plots: dict[str, Plot]) -> None:
    lines = {line["name"]: line["line"]["color"] for line in traces(plots["curves"])[2::3]}
    points = {point["name"]: point["marker"]["color"] for point in traces(plots["front"])[1:]}

    assert lines == points == {"ppo": colour_of(0), "wait": colour_of(1)}


def test_learning_plot_shows_every_run_and_their_mean() -> None:
    plot, entropy = learning_plots(learning())

    assert plot.id == "growth-mean_accuracy_pct"
    assert [trace["y"] for trace in traces(plot)[2:]] == [[10, 20], [30, None], [10, 20]]
    assert entropy.id == "entropy-op"


def test_band_leaves_out_rounds_without_a_value() -> None:
    gap = learning(curves=(curve("kl_divergence", (0.1, None, 0.3)),))
    high, low, *_ = traces(learning_plots(gap)[0])

    assert high["x"] == low["x"] == [1, 3]


def test_every_curve_that_is_read_is_shown() -> None:
    read = read_learning([])
    assert len(learning_plots(read)) == len(read.curves)
