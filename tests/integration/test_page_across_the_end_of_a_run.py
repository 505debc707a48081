"""The dashboard in a real browser while its run ends and its server goes away."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.browser import needs_chromium, running_browser, watched_page
from tests.integration.served import (
    ENDLESS,
    SMALL,
    WAIT_S,
    ServedRun,
    interrupt,
    is_gone,
    let_be,
    listening,
    resume,
    served_run,
    suspend,
)

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.mark.parametrize(
    ("flags", "end", "verdict"),
    [
        pytest.param((*SMALL, "--rounds", "6"), let_be, "completed", id="completed"),
        pytest.param(ENDLESS, interrupt, "interrupted", id="SIGINT"),
    ],
)
def test_page_shows_the_end_keeps_it_and_names_the_command_that_shows_it_again(
    flags: tuple[str, ...],
    end: Callable[[ServedRun], None],
    verdict: str,
    browser: Browser,
    tmp_path: Path,
) -> None:
    with served_run(tmp_path, *flags) as run:
        suspend(run)
        with watched_page(browser, run.address) as watched:
            page = watched.page
            with listening(run) as received:
                expect(page.locator("#connection")).to_contain_text("connected")
                resume(run)
                end(run)
            run.process.wait(WAIT_S)
            assert is_gone(run.port)

            expect(page.locator("#connection")).to_contain_text("run ended")
            expect(page.locator("#answers")).to_contain_text(verdict)
            expect(page.locator("#again code")).to_have_text(f"esper-telemetry serve {run.run_dir}")
            # The page counts what the file and the foreign client have.
            num_events = len(run.log_lines())
            assert len(received.lines) == num_events
            shown = page.locator("#counts td:nth-child(2)").all_text_contents()
            assert sum(map(int, shown)) == num_events
            expect(page.locator("#log")).to_contain_text("RUN_FINISHED")
