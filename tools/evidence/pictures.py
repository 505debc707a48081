"""The pictures of docs/evidence.md: the plots of the kept reports, as a browser draws them."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from esper.karn.comparison_page import comparison_page
from esper.leyline.comparison import ComparisonReport
from tools.evidence.reports import KNOWN, PRESETS, ROOT, Kept, read_kept

__all__ = ["ACCURACY", "ENTROPY", "FRONT", "GROWTH", "UPDATE", "picture_name", "take_pictures"]

IMAGES: Final = ROOT / "docs" / "images"
ACCURACY, FRONT = "accuracy", "front"
GROWTH, UPDATE, ENTROPY = "growth", "update", "entropy"
ELEMENTS: Final[Mapping[str, str]] = {
    ACCURACY: "#curves",
    FRONT: "#front",
    GROWTH: "#growth",
    UPDATE: "#update",
    ENTROPY: "#entropy",
}
"""What a picture shows, and which element of the page that is."""
WIDTH_PX, MARGIN_PX = 1100, 32


def picture_name(preset: str, part: str) -> str:
    """Return the file name of a picture."""
    return f"evidence-{preset.partition('_')[0]}-{part}.png"


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
        for preset in (name for name in PRESETS if name in reports):
            yield from _take(browser, preset, reports[preset].report, directory)
        browser.close()


def _take(
    browser: Browser, preset: str, report: ComparisonReport, directory: Path
) -> Iterator[Path]:
    # The document tells how policies learned once, where they were trained.
    has_learning = report.learning is not None and preset == KNOWN
    parts = ELEMENTS if has_learning else (ACCURACY, FRONT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(comparison_page(report), encoding="utf-8")
        page = browser.new_page(
            viewport={"width": WIDTH_PX + MARGIN_PX, "height": 900}, color_scheme="light"
        )
        page.goto(path.as_uri())
        for part in parts:
            picture = directory / picture_name(preset, part)
            page.locator(f"{ELEMENTS[part]} .main-svg").first.wait_for()
            page.locator(ELEMENTS[part]).screenshot(path=picture)
            yield picture
        page.close()
