"""The page of a comparison."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser
from tests.browser import needs_chromium, running_browser, watched_page
from tests.karn.comparisons import FIGURE, arm, comparison, learning

from esper.karn.report.comparison_page import comparison_page
from esper.karn.report.comparison_tables import estimate_text
from esper.leyline.comparison import ComparisonReport

NASTY = "ppo:</script><b>"


@pytest.fixture
def report() -> ComparisonReport:
    return comparison(arm(NASTY, is_on_front=True), arm("wait"), learning=learning())


def plots_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="plots">(.*?)</script>', page)
    assert found is not None
    return {plot["id"]: plot for plot in json.loads(found[1])}


class _Parsed(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.ids: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href")]
        self.ids |= {value for name, value in attrs if name == "id" and value is not None}


def test_page_needs_nothing_from_elsewhere(report: ComparisonReport) -> None:
    assert _Parsed(comparison_page(report)).sources == []


def test_every_plot_has_its_place(report: ComparisonReport) -> None:
    page = comparison_page(report)
    assert plots_of(page).keys() <= _Parsed(page).ids


def test_names_that_users_chose_are_text_and_nothing_else(report: ComparisonReport) -> None:
    # The other's last part is the same, so that both go by their whole names.
    arms = (*report.arms, arm("ppo:other/script><b>"))
    page = comparison_page(msgspec.structs.replace(report, arms=arms))

    assert "ppo:</script>" not in page
    assert [line.get("name") for line in plots_of(page)["curves"]["data"]].count(NASTY) == 1


def test_arm_goes_by_its_kind_where_that_is_enough(report: ComparisonReport) -> None:
    page = comparison_page(report)

    assert {line.get("name") for line in plots_of(page)["curves"]["data"]} == {None, "ppo", "wait"}
    assert "<td>ppo - wait</td>" in page
    assert "ppo is ppo:&lt;/script&gt;&lt;b&gt;." in page


def test_static_arm_is_shown_at_equal_cost_too(report: ComparisonReport) -> None:
    static = arm("static-final", equal_flops_pct=43.21, train_gflops=8.5)
    page = comparison_page(msgspec.structs.replace(report, arms=(*report.arms, static)))

    assert "<td>static-final</td><td>7</td><td>8.50</td><td>43.2</td>" in page


def test_training_runs_are_listed_with_their_verdicts_and_alarms(report: ComparisonReport) -> None:
    page = comparison_page(report)

    assert "<td>0000aaaa</td>" in page
    assert "<td>Finished, the policy learns</td>" in page
    assert "<td>3 KL_SPIKE_DETECTED</td>" in page
    assert "<td>none</td>" in page


def test_page_without_training_runs_does_not_speak_of_them(report: ComparisonReport) -> None:
    page = comparison_page(msgspec.structs.replace(report, learning=None))

    assert "How the policies learned" not in page
    assert plots_of(page).keys() == {"curves", "front"}


def test_figure_is_written_with_its_interval() -> None:
    assert estimate_text(FIGURE) == "50.0 (40.0 to 65.0)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1280, "light")])
def test_page_draws_every_plot_and_never_scrolls_sideways(
    report: ComparisonReport, browser: Browser, tmp_path: Path, width: int, theme: str
) -> None:
    path = tmp_path / "page.html"
    path.write_text(comparison_page(report), encoding="utf-8")

    with watched_page(browser, path.as_uri(), size=(width, 800), theme=theme) as watched:
        watched.page.locator("#entropy-op .main-svg").first.wait_for()
        drawn = watched.page.locator(".plot:has(.main-svg)").count()
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert watched.page.evaluate(overflow) == 0

    assert drawn == len(plots_of(path.read_text(encoding="utf-8")))
