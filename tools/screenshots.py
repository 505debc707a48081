"""`python -m tools.screenshots RUN -o DIR`: pictures of runs, of a dashboard and of a console.

Drives Debian's chromium, so that the pictures in the README can be made again from any run.
"""

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console as RichConsole
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from esper.karn.console.console import Console
from esper.karn.report.run_report import write_report
from esper.leyline.telemetry import Event, decode_event
from esper.nissa.reading.lines import read_lines
from esper.nissa.reading.run_lookup import find_log, find_run, run_directories

SIZES = {"wide": (1920, 1080), "laptop": (1280, 800), "phone": (390, 844)}
LIST_SIZES = {"runs": (1440, 1000), "runs-tablet": (1024, 1200), "runs-phone": (390, 844)}
CONSOLES = {
    "console": (124, 28),
    "console-80": (80, 24),
    "console-120": (120, 28),
    "console-200": (200, 30),
}
"""Columns and lines."""
MAX_OVERLAID = 4
WAIT_MS = 120_000
NORMAL = "0d1217 ff8a80 56cf95 f5bd52 62c6ff c9a6ff 5ed3e3 c3cbd3"
BRIGHT = "8d9caa ffaca5 8fe3ba ffd37f 9adcff dcc6ff 97e5ef ffffff"


def colours(names: str) -> list[tuple[int, int, int]]:
    """Read colours as they are written in style sheets."""
    return [(int(name[:2], 16), int(name[2:4], 16), int(name[4:], 16)) for name in names.split()]


TERMINAL = TerminalTheme(
    colours("0d1217")[0], colours("e8eef4")[0], colours(NORMAL), colours(BRIGHT)
)


def main(argv: Sequence[str] | None = None) -> int:
    """Make the pictures."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory or events.jsonl")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/images"), metavar="DIR")
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    parser.add_argument(
        "--share",
        type=float,
        default=1.0,
        metavar="X",
        help="share of the events the console has seen, so that it shows a run under way",
    )
    parser.add_argument(
        "--runs", type=Path, metavar="DIR", help="directory of runs, for pictures of their list"
    )
    arguments = parser.parse_args(argv)
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("no chromium on the path; 'apt-get install chromium' provides it")
    arguments.output.mkdir(parents=True, exist_ok=True)
    run_dir = find_run(arguments.run)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        report = Path(folder) / "report.html"
        write_report(run_dir, report)
        for name, size in SIZES.items():
            take_dashboard(browser, report, size, arguments.theme, arguments.output / f"{name}.png")
        take_detail(browser, report, arguments.theme, arguments.output / "env.png")
        for name, (columns, lines) in CONSOLES.items():
            output = arguments.output / f"{name}.png"
            take_console(browser, run_dir, arguments.share, (columns, lines), output)
        if arguments.runs is not None:
            take_list(browser, arguments.runs, arguments.theme, arguments.output)
        browser.close()
    return 0


def take_dashboard(
    browser: Browser, report: Path, size: tuple[int, int], theme: str, output: Path
) -> None:
    """Take the page as it opens."""
    width, height = size
    page = browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme="light" if theme == "light" else "dark",
    )
    page.set_default_timeout(WAIT_MS)
    page.goto(report.as_uri())
    page.locator("#chart-policy .main-svg").first.wait_for()
    page.screenshot(path=output)
    page.close()
    print(f"wrote {output}")


def take_detail(browser: Browser, report: Path, theme: str, output: Path) -> None:
    """Take the drill-down into the first env."""
    page = browser.new_page(
        viewport={"width": 1280, "height": 800},
        color_scheme="light" if theme == "light" else "dark",
    )
    page.set_default_timeout(WAIT_MS)
    page.goto(report.as_uri())
    page.locator("#env-grid .env").first.click()
    page.locator("#chart-worth .main-svg").first.wait_for()
    page.screenshot(path=output)
    page.close()
    print(f"wrote {output}")


def take_list(browser: Browser, parent: Path, theme: str, folder: Path) -> None:
    """Take the list of runs, with the newest ones laid over each other."""
    names = [run.name for run in run_directories(parent)][-MAX_OVERLAID:]
    shown = "&".join(f"run={name}" for name in names)
    command = [sys.executable, "-m", "esper.scripts.telemetry", "serve", str(parent)]
    server = subprocess.Popen(
        [*command, "--address", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None, "stdout is a pipe"
    try:
        address = server.stdout.readline().split()[2]
        for name, (width, height) in LIST_SIZES.items():
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="light" if theme == "light" else "dark",
            )
            page.set_default_timeout(WAIT_MS)
            page.goto(f"{address}runs#{shown}&smooth=0.4")
            page.locator("#chart-reward .main-svg").first.wait_for()
            page.locator("#runs-table tbody tr").first.wait_for()
            page.screenshot(path=folder / f"{name}.png", full_page=name != "runs-phone")
            page.close()
            print(f"wrote {folder / name}.png")
    finally:
        server.kill()
        server.communicate()


def take_console(
    browser: Browser, run_dir: Path, share: float, size: tuple[int, int], output: Path
) -> None:
    """Take the live screen as it was after a share of the run's events."""
    log = find_log(run_dir)
    lines = list(read_lines(log))
    events = [decode_event(line) for line in lines[: max(round(share * len(lines)), 1)]]
    page = browser.new_page(viewport={"width": 1800, "height": 900}, device_scale_factor=2)
    page.set_content(console_page(events, *size))
    page.locator("pre").screenshot(path=output)
    page.close()
    print(f"wrote {output}")


def console_page(events: Sequence[Event], columns: int, lines: int) -> str:
    """Return the console's screen as a page."""
    stream = io.StringIO()
    console = Console(
        stream,
        is_terminal=True,
        width=columns,
        height=lines,
        clock=_Moment(events[-1].ts),
    )
    for event in events:
        console.on_event(event)
    console.draw()
    recorder = RichConsole(record=True, width=columns, file=io.StringIO())
    recorder.print(Text.from_ansi(stream.getvalue()))
    style = (
        "background:#0d1217;color:#e8eef4;margin:0;padding:14px;display:inline-block;"
        "line-height:1.35;font-family:DejaVu Sans Mono,monospace"
    )
    return recorder.export_html(
        inline_styles=True,
        theme=TERMINAL,
        code_format=f"<pre style='{style}'>{{code}}</pre>",
    )


class _Moment:
    """A clock that stands still."""

    def __init__(self, ts: float) -> None:
        self._ts = ts

    def __call__(self) -> float:
        return self._ts


if __name__ == "__main__":
    sys.exit(main())
