"""Driving a real browser: Debian's chromium through Playwright, offline and without a profile."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 60_000

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ,
    reason="no chromium on the path; 'apt-get install chromium' provides it",
)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start a headless browser."""
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """A page and everything that went wrong on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("console", self._on_console)
        page.on("pageerror", self._on_error)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _on_error(self, error: Error) -> None:
        self.errors.append(str(error))


@contextmanager
def watched_page(
    browser: Browser, address: str, *, size: tuple[int, int] = (1280, 800), theme: str = "dark"
) -> Iterator[Watched]:
    """Open an address in a fresh context; it must end without an error."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="light" if theme == "light" else "dark",
        reduced_motion="reduce",
    )
    watched = Watched(context.new_page())
    watched.page.goto(address)
    yield watched
    assert not watched.errors, watched.errors
    context.close()


class DashboardProcess:
    """`esper-telemetry serve` in a process of its own."""

    def __init__(self, run_dir: Path, *extra: str, port: int = 0) -> None:
        command = [sys.executable, "-m", "esper.scripts.telemetry", "serve", str(run_dir)]
        self._process = subprocess.Popen(
            [*command, "--address", f"127.0.0.1:{port}", *extra], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().split()[2]
        self.port = int(self.address.split(":")[2].partition("/")[0])

    def stop(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.communicate(timeout=20)


@contextmanager
def dashboard(run_dir: Path, *extra: str, port: int = 0) -> Iterator[DashboardProcess]:
    """Serve a run directory for a while."""
    process = DashboardProcess(run_dir, *extra, port=port)
    try:
        yield process
    finally:
        process.stop()
