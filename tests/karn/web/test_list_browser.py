"""The list of runs and their overlay in a real browser."""

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser import dashboard, needs_chromium, running_browser, watched_page
from tests.karn.runs import MANIFEST, append_lines, write_run
from tests.karn.story import Story
from tests.karn.web.test_dashboard_browser import IS_SETTLED, RULES, SIZES

from esper.leyline.config import Job, RunOptions, TrainingConfig

pytestmark = [pytest.mark.browser, needs_chromium]

ONE, OTHER, THIRD = "20260101T000000Z_00000001", "20260102T000000Z_00000002", "third"


def write_named(parent: Path, name: str, label: str, lr: float, lines: list[bytes]) -> Path:
    run_dir = write_run(parent / name, lines)
    job = Job(
        training=TrainingConfig(lr=lr, n_episodes=4), run=RunOptions(name=label, tags={"lr": "x"})
    )
    manifest = msgspec.structs.replace(
        MANIFEST, job=job, run_id=name[-8:], host_flop_per_sample=1e6
    )
    (run_dir / "run.json").write_bytes(msgspec.json.encode(manifest))
    return run_dir


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("list") / "my runs"
    quiet = Story(num_rounds=4, num_envs=2, num_steps=6, seed=3, has_trouble=False)
    write_named(parent, ONE, "narrow", 0.001, list(quiet.lines()))
    wide = Story(num_rounds=4, num_steps=8, has_trouble=False)
    write_named(parent, OTHER, "wide", 0.002, list(wide.lines()))
    write_run(parent / THIRD, Story(num_rounds=2, num_envs=2, num_steps=4).lines())
    return parent


@pytest.fixture(scope="module")
def server(parent: Path) -> Iterator[str]:
    with dashboard(parent) as process:
        yield process.address


def choose(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_role("checkbox", name=f"show {name}", exact=True).check()
    expect(page.locator("#result-table tbody tr")).to_have_count(len(names))


def legend_of(page: Page) -> list[str]:
    return page.locator("#chart-accuracy .legendtext").all_text_contents()


def test_runs_are_listed_filtered_sorted_and_opened(browser: Browser, server: str) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        rows = page.locator("#runs-table tbody tr")
        expect(page.locator("#run-title")).to_have_text("Runs in my runs")
        expect(rows).to_have_count(3)
        page.locator("#runs-filter").fill("lr=x completed")
        expect(rows).to_have_count(2)
        page.get_by_role("button", name="run", exact=True).click()
        expect(rows.first).to_contain_text("narrow")
        page.get_by_role("link", name="wide", exact=True).click()
        expect(page.locator("#run-title")).to_contain_text("digits · ppo · run 5eed0001")
        expect(page.locator("#chart-accuracy .main-svg").first).to_be_attached()
        expect(page.locator("#log li").first).to_be_visible()
        page.locator("#runs-link").click()
        expect(rows).to_have_count(3)


def test_overlay_shows_curves_differences_and_counts(browser: Browser, server: str) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        choose(page, "narrow", "wide")
        for name in ("accuracy", "return", "reward"):
            expect(page.locator(f"#chart-{name} .main-svg").first).to_be_attached()
        expect(page.locator("#chart-accuracy .legendtext")).to_have_text(["narrow", "wide"])
        row = page.locator("#config-table tbody tr")
        expect(row).to_have_count(1)
        expect(row.locator("td.differs")).to_have_text("0.002")
        counts = page.locator("#counts-table tbody tr").filter(has_text="EPOCH_COMPLETED").last
        expect(counts.locator("td").first).to_have_text("48")
        expect(counts.locator("td.differs")).to_have_text("128 +80")


def test_a_reload_shows_the_same(browser: Browser, server: str) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        choose(page, "narrow", "wide")
        page.locator("#x-axis").select_option("step")
        page.locator("#smooth").fill("0.6")
        page.locator("#runs-filter").fill("digits")
        page.wait_for_function("() => location.hash.includes('filter=digits')")
        address = page.evaluate("location.href")
        page.reload()
        expect(page.locator("#chart-accuracy .legendtext")).to_have_text(["narrow", "wide"])
        expect(page.locator("#x-axis")).to_have_value("step")
        expect(page.locator("#smooth-value")).to_have_text("0.60")
        expect(page.locator("#runs-filter")).to_have_value("digits")
        expect(page.locator("#chart-accuracy .xtitle")).to_have_text("env steps")
        assert page.url == address
    with watched_page(browser, address) as linked:
        expect(linked.page.locator("#chart-accuracy .legendtext")).to_have_text(["narrow", "wide"])


@pytest.mark.parametrize("x", ["round", "step", "wall", "flop"])
def test_every_x_axis_has_a_point_per_round(browser: Browser, server: str, x: str) -> None:
    with watched_page(browser, f"{server}runs#run={ONE}&x={x}") as watched:
        page = watched.page
        expect(page.locator("#chart-accuracy .legendtext")).to_have_text(["narrow"])
        xs = page.evaluate("document.querySelector('#chart-accuracy').data[0].x")
        assert len(xs) == 4
        assert xs == sorted(set(xs))
        assert xs[0] > 0


RANGE = "document.querySelector('#chart-accuracy')._fullLayout.xaxis.range"
COUNT = "document.querySelector('#chart-accuracy').data.at(-1).x.length"


def enlarge(page: Page) -> None:
    """Drag over a part of a chart, as a reader does."""
    before = page.evaluate(RANGE)
    box = page.locator("#chart-accuracy .nsewdrag").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, middle, steps=4)
    page.mouse.up()
    page.wait_for_function(f"before => {RANGE}[0] > before[0]", arg=before)


@contextmanager
def locked(log: Path) -> Iterator[None]:
    """Lock a log as the run that writes it does, which makes it that of a running run."""
    with log.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_zoom_survives_new_rounds(browser: Browser, tmp_path: Path) -> None:
    lines = list(Story(num_rounds=5, num_envs=2, num_steps=6, has_trouble=False).lines())
    run_dir = write_run(
        tmp_path / "runs" / "growing", [lines.pop(0) for _ in range(len(lines) // 3)]
    )
    rest = len(lines)
    with (
        locked(run_dir / "events.jsonl"),
        dashboard(run_dir) as process,
        watched_page(browser, f"{process.address}runs#run=growing") as watched,
    ):
        page = watched.page
        expect(page.locator("#result-table tbody tr")).to_contain_text("5eed0001")
        for address in (f"{process.address}runs#run=growing&x=step", process.address):
            page.goto(address)
            expect(page.locator("#chart-accuracy .main-svg").first).to_be_attached()
            enlarge(page)
            zoomed = page.evaluate(RANGE)
            count = page.evaluate(COUNT)
            append_lines(run_dir, [lines.pop(0) for _ in range(rest // 2)])
            page.wait_for_function(f"() => {COUNT} > {count}")
            assert page.evaluate(RANGE) == zoomed


def test_charts_are_saved_as_csv_and_png(browser: Browser, server: str) -> None:
    with watched_page(browser, f"{server}runs#run={ONE}") as watched:
        page = watched.page
        with page.expect_download() as saved:
            page.get_by_role("button", name="CSV of Accuracy").click()
        rows = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()
        assert rows[0] == "series,x,y,base"
        assert [row.split(",")[:2] for row in rows[1:]] == [
            ["narrow", str(n)] for n in (1, 2, 3, 4)
        ]
        with page.expect_download() as saved:
            page.get_by_role("button", name="PNG of Accuracy").click()
        assert saved.value.suggested_filename.endswith("accuracy.png")
        assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")


def test_pages_of_the_list_keep_the_rules(browser: Browser, server: str) -> None:
    with watched_page(browser, f"{server}runs#run={ONE}&run={OTHER}") as watched:
        page = watched.page
        expect(page.locator("#chart-reward .main-svg").first).to_be_attached()
        for _ in ("dark", "light"):
            for width, height in SIZES:
                page.set_viewport_size({"width": width, "height": height})
                page.wait_for_function(IS_SETTLED)
                found = page.evaluate(RULES)
                assert {rule: texts for rule, texts in found.items() if texts} == {}
            page.keyboard.press("t")


def test_text_of_a_run_stays_text(browser: Browser, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=document.title='owned'>"
    lines = list(Story(num_rounds=1, num_envs=1, num_steps=2, has_trouble=False).lines())
    write_named(tmp_path / "runs", ONE, hostile, 0.1, lines)
    with (
        dashboard(tmp_path / "runs") as process,
        watched_page(browser, f"{process.address}runs#run={ONE}") as watched,
    ):
        page = watched.page
        expect(page.locator("#chart-accuracy .legendtext")).to_have_text(hostile)
        expect(page.locator("#runs-table th a")).to_have_text(hostile)
        assert page.locator("main img").count() == 0
        assert page.title() == "Esper · runs in runs"


def test_alarm_leads_to_its_events_and_the_log_searches_the_whole_run(
    browser: Browser, tmp_path: Path
) -> None:
    run_dir = write_run(tmp_path / "run", Story(num_rounds=4, num_envs=6, num_steps=30).lines())
    with dashboard(run_dir) as process, watched_page(browser, process.address) as watched:
        page = watched.page
        alarm = page.locator("#alarms li").filter(has_text="governor rollback")
        alarm.get_by_role("button").click()
        marked = page.locator("#log .marked")
        expect(marked).to_have_count(1)
        expect(marked.locator(".type")).to_have_text("GOVERNOR_ROLLBACK")
        page.locator("#log-text").fill("round:1 type:TRAINING_STARTED")
        expect(page.locator("#log-note")).to_contain_text("0 events, whole run searched")
        page.locator("#log-text").fill("type:TRAINING_STARTED")
        expect(page.locator("#log-note")).to_contain_text("1 event, whole run searched")
        page.reload()
        expect(page.locator("#log-text")).to_have_value("type:TRAINING_STARTED")
        expect(page.locator("#log li")).to_have_count(1)
        page.locator("#log-text").fill("epoch")
        expect(page.locator("#log-note")).to_contain_text("200 events, older ones")
        page.locator("#log-older").click()
        expect(page.locator("#log-note")).to_contain_text("400 events")
        sequence = page.locator("#log li").evaluate_all("rows => rows.map(row => row.dataset.seq)")
        numbers = [int(text) for text in sequence]
        assert numbers == sorted(set(numbers), reverse=True)


def test_opened_env_stands_in_the_address(browser: Browser, server: str) -> None:
    with watched_page(browser, f"{server}run/{OTHER}/") as watched:
        page = watched.page
        page.locator("#env-grid .env").first.click()
        title = page.locator("#detail-title").inner_text()
        assert re.search(r"#env=\d", page.url)
        page.reload()
        expect(page.locator("#detail-title")).to_have_text(title)
        expect(page.locator("#detail")).to_be_visible()
