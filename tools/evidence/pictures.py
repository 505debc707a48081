"""The pictures of docs/evidence.md: the plots of the kept reports, as a browser draws them."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from esper.karn.report.comparison_page import comparison_page
from esper.karn.report.comparison_plots import comparison_plots, learning_plots
from esper.leyline.comparison import ComparisonReport
from tools.evidence.reports import FASHION, KNOWN, ROOT, Kept, read_kept

__all__ = ["picture_name", "pictures_of", "take_pictures"]

IMAGES: Final = ROOT / "docs" / "images"
CAPTIONS: Final[Mapping[str, str]] = {
    "curves": "Test accuracy of every arm, step by step",
    "front": "Final accuracy against parameters added",
    "growth": "Learning curves: each run, their mean and their range",
    "update": "The policy's updates: each run, their mean and their range",
    "entropy": "Entropy of each head over its choices",
}
"""The elements of the page that pictures are taken of, and what they show."""
WIDTH_PX, MARGIN_PX = 1100, 32


def picture_name(preset: str, element: str) -> str:
    """Return the file name of a picture."""
    return f"evidence-{preset.partition('_')[0]}-{element}.png"


def pictures_of(report: ComparisonReport) -> dict[str, str]:
    """Return the elements of a report's page that have something to show, with their captions."""
    learning = learning_plots(report.learning) if report.learning is not None else []
    drawn = {plot.id for plot in comparison_plots(report)}
    drawn |= {plot.id.partition("-")[0] for plot in learning}
    return {element: caption for element, caption in CAPTIONS.items() if element in drawn}


def take_pictures(
    kept: Mapping[str, Kept] | None = None, directory: Path = IMAGES
) -> Iterator[Path]:
    """Take every picture that the document shows; yield each."""
    reports = read_kept() if kept is None else kept
    chromium = shutil.which("chromium")
    if chromium is None:
        print("no pictures: no chromium on the path; 'apt-get install chromium' provides it")
        return
    directory.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for preset in (name for name in (KNOWN, FASHION) if name in reports):
            yield from _take(browser, preset, reports[preset].report, directory)
        browser.close()


def _take(
    browser: Browser, preset: str, report: ComparisonReport, directory: Path
) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(comparison_page(report), encoding="utf-8")
        page = browser.new_page(
            viewport={"width": WIDTH_PX + MARGIN_PX, "height": 900}, color_scheme="light"
        )
        page.goto(path.as_uri())
        for element in pictures_of(report):
            picture = directory / picture_name(preset, element)
            page.locator(f"#{element} .main-svg").first.wait_for()
            page.locator(f"#{element}").screenshot(path=picture)
            yield picture
        page.close()
