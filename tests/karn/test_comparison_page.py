"""The page of a comparison."""

import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from esper.karn.comparison_page import comparison_page, estimate_text
from esper.leyline.comparison import ArmSummary, ComparisonReport, Contrast, Estimate

FIGURE = Estimate(value=50.0, low=40.0, high=65.0)


def arm(name: str, **changes: object) -> ArmSummary:
    plain = ArmSummary(
        arm=name,
        num_runs=2,
        num_envs=4,
        num_failed=0,
        final_pct=FIGURE,
        best_pct=FIGURE,
        mean_pct=FIGURE,
        total_reward=FIGURE,
        num_params_added=7.0,
        train_gflops=1.0,
        wall_s=2.0,
        num_germinated=1.0,
        num_fossilized=1.0,
        num_pruned=0.0,
        positive_fossils_pct=None,
        equal_flops_pct=None,
        is_on_front=False,
        curve_pct=(10.0, 50.0),
    )
    return msgspec.structs.replace(plain, **changes)


@pytest.fixture
def report() -> ComparisonReport:
    contrast = Contrast(
        first="a",
        second="b",
        final_pp=FIGURE,
        mean_pp=FIGURE,
        total_reward=FIGURE,
        probability=FIGURE,
    )
    return ComparisonReport(
        task="digits",
        preset=None,
        seeds=(1, 2),
        num_steps=2,
        num_envs=2,
        is_greedy=False,
        arms=(arm("ppo:</script><b>", is_on_front=True), arm("wait")),
        contrasts=(contrast,),
    )


def plots_of(page: str) -> list[Any]:
    found = re.search(r'<script type="application/json" id="plots">(.*?)</script>', page)
    assert found is not None
    plots: list[Any] = json.loads(found[1])
    return plots


class _Sources(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href")]


def test_page_needs_nothing_from_elsewhere(report: ComparisonReport) -> None:
    sources = _Sources()
    sources.feed(comparison_page(report))
    assert sources.found == []


def test_plots_show_what_the_report_says(report: ComparisonReport) -> None:
    curves, front = plots_of(comparison_page(report))

    assert [line["y"] for line in curves["data"]] == [[10.0, 50.0], [10.0, 50.0]]
    point = front["data"][0]
    assert (point["x"], point["y"]) == ([7.0], [50.0])
    assert point["error_y"]["array"] == [15.0]
    assert point["error_y"]["arrayminus"] == [10.0]


def test_name_of_an_arm_is_text_and_nothing_else(report: ComparisonReport) -> None:
    page = comparison_page(report)

    assert "ppo:</script>" not in page
    assert plots_of(page)[0]["data"][0]["name"] == "ppo:</script><b>"


def test_figure_is_written_with_its_interval() -> None:
    assert estimate_text(FIGURE) == "50.0 (40.0 to 65.0)"
