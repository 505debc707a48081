"""The dashboard in a real browser: live numbers, drill-down, lost connections, readable by all."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser import dashboard, needs_chromium, running_browser, watched_page
from tests.karn.runs import append_lines, write_run
from tests.karn.story import Story

from esper.karn.report.run_report import write_report
from esper.leyline.telemetry import EventType, decode_event

pytestmark = [pytest.mark.browser, needs_chromium]

STORY = Story(num_rounds=4, num_envs=6, num_steps=16)
RULES = (Path(__file__).parent / "page_rules.js").read_text(encoding="utf-8")
SIZES = [(390, 844), (1280, 800), (1920, 1080)]
IS_SETTLED = """() => {
    const charts = [...document.querySelectorAll(".js-plotly-plot")];
    const lanes = [...document.querySelectorAll("#lanes svg")];
    return charts.every((chart) => chart.offsetParent === null
            || Math.abs(chart._fullLayout.width - chart.clientWidth) < 2)
        && lanes.every((lane) => lane.parentElement.offsetParent === null
            || Math.abs(lane.getAttribute("width") - lane.parentElement.clientWidth) < 2);
}"""
"""Charts follow the size of the window a moment later."""
PLANTED_FAULTS = """() => {
    const panel = document.querySelector("#panel-run");
    const add = (text, style) => {
        const node = document.createElement("p");
        node.textContent = text;
        Object.assign(node.style, style);
        panel.append(node);
        return node;
    };
    add("faint", { color: "#333333", background: "#222222" });
    add("one over", { position: "absolute", left: "40px", top: "4000px" });
    add("the other", { position: "absolute", left: "44px", top: "4002px" });
    add("far too long for its frame", { width: "20px", overflow: "hidden", whiteSpace: "nowrap" });
    add("twice", {}).id = "connection";
    panel.append(document.createElement("button"));
    panel.lastChild.style.padding = "9px";
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture
def lines() -> list[bytes]:
    """A run that began just now, so that it counts as alive."""
    return list(Story(num_rounds=4, num_envs=6, num_steps=16, started_ts=time.time()).lines())


@pytest.fixture
def run_dir(tmp_path: Path, lines: list[bytes]) -> Path:
    """Half of the run."""
    return write_run(tmp_path / "run", lines[: len(lines) // 2])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a whole run, for tests that only look."""
    run_dir = write_run(tmp_path_factory.mktemp("whole") / "run", STORY.lines())
    with dashboard(run_dir) as process:
        yield process.address


def wait_for_charts(page: Page) -> None:
    expect(page.locator("#connection")).to_contain_text(re.compile("connected|report"))
    for name in ("accuracy", "reward", "steps", "seeds", "actions", "policy"):
        expect(page.locator(f"#chart-{name} .main-svg").first).to_be_attached()


def test_numbers_change_while_the_run_goes_on(
    browser: Browser, run_dir: Path, lines: list[bytes]
) -> None:
    with dashboard(run_dir) as server, watched_page(browser, server.address) as watched:
        page = watched.page
        expect(page.locator("#verdict-headline")).to_contain_text("Running")
        expect(page.locator("#run-title")).to_contain_text("digits · ppo · run 5eed0001")
        before = page.locator("#progress-text").inner_text()
        append_lines(run_dir, lines[len(lines) // 2 :])
        expect(page.locator("#verdict-headline")).to_contain_text("Finished")
        expect(page.locator("#progress-text")).to_contain_text("100.0 %")
        assert before != page.locator("#progress-text").inner_text()
        last_round = f"after round {STORY.num_rounds}"
        expect(page.locator("#progress-facts")).to_contain_text(last_round)
        expect(page.locator("#env-grid .env")).to_have_count(STORY.num_envs)


def test_env_opens_by_keyboard_and_gives_the_focus_back(browser: Browser, server: str) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        expect(page.locator("#env-grid .env")).to_have_count(STORY.num_envs)
        page.keyboard.press("j")
        page.keyboard.press("j")
        chosen = page.locator('.env[aria-current="true"]').get_attribute("data-env")
        page.keyboard.press("Enter")
        expect(page.locator("#detail")).to_be_visible()
        expect(page.locator("#detail-title")).to_have_text(f"Env {chosen}")
        expect(page.locator("#lanes svg text").first).to_have_text("r0c0")
        expect(page.locator("#env-actions tbody tr").first).to_be_visible()
        page.keyboard.press("j")
        expect(page.locator("#detail-title")).not_to_have_text(f"Env {chosen}")
        page.keyboard.press("Escape")
        expect(page.locator("#detail")).to_be_hidden()
        expect(page.locator('.env[aria-current="true"]')).to_be_focused()


def test_page_regains_a_lost_connection_and_the_whole_run(
    browser: Browser, run_dir: Path, lines: list[bytes]
) -> None:
    with dashboard(run_dir) as server, watched_page(browser, server.address) as watched:
        page = watched.page
        expect(page.locator("#connection")).to_contain_text("connected")
        server.stop()
        expect(page.locator("#connection")).to_contain_text("connection lost")
        append_lines(run_dir, lines[len(lines) // 2 :])
        with dashboard(run_dir, port=server.port):
            expect(page.locator("#connection")).to_contain_text("✓ connected")
            expect(page.locator("#verdict-headline")).to_contain_text("Finished")
        # A socket that cannot connect is what this is about; the browser reports it as an error,
        # also after this server has ended.
        watched.errors = [text for text in watched.errors if "WebSocket" not in text]


def test_text_of_a_run_stays_text(browser: Browser, server: str) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        expect(page.locator("#alarms")).to_contain_text("<script>document.title='owned'</script>")
        assert page.locator("#alarms script").count() == 0
        assert page.title() == "Esper · digits · 5eed0001"


def test_event_log_filters_by_word_and_severity(browser: Browser, server: str) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        rows = page.locator("#log li")
        expect(rows.first).to_be_visible()
        page.keyboard.press("/")
        expect(page.locator("#log-text")).to_be_focused()
        page.keyboard.type("epoch_completed")
        expect(rows.locator(".type").filter(has_not_text="EPOCH_COMPLETED")).to_have_count(0)
        expect(rows.first).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#log-text")).to_have_value("")
        page.locator("#log-severity").select_option("2")
        expect(rows.filter(has_text=re.compile("^.{8}(debug|info)"))).to_have_count(0)
        expect(rows.filter(has_text="ENTROPY_COLLAPSE_DETECTED")).to_have_count(1)


def test_help_opens_with_a_key_and_lists_the_thresholds(browser: Browser, server: str) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        expect(page.locator("#run-title")).to_contain_text("digits")
        page.keyboard.press("?")
        expect(page.locator("#help")).to_be_visible()
        expect(page.locator("#thresholds")).to_contain_text("KL divergence")
        page.keyboard.press("Escape")
        expect(page.locator("#help")).to_be_hidden()


def test_theme_changes_and_is_remembered(browser: Browser, server: str) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        page.locator("#theme").click()
        expect(page.locator("html")).to_have_attribute("data-theme", "light")
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_page_behind_a_token_works(browser: Browser, run_dir: Path) -> None:
    with (
        dashboard(run_dir, "--token", "s3cret&x") as server,
        watched_page(browser, server.address) as watched,
    ):
        wait_for_charts(watched.page)
        expect(watched.page.locator("#log li").first).to_be_visible()


def broken_rules(page: Page) -> dict[str, list[str]]:
    return {rule: found for rule, found in page.evaluate(RULES).items() if found}


def check_rules(page: Page, *themes: str) -> None:
    """Check the page at every size, in the theme it has and then in the others."""
    for theme in themes:
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_function(IS_SETTLED)
            assert broken_rules(page) == {}, f"{theme} at {width}x{height}"
        page.keyboard.press("t")


def test_page_keeps_the_rules_in_both_themes_at_every_size(browser: Browser, server: str) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        wait_for_charts(page)
        expect(page.locator("#log li").first).to_be_visible()
        check_rules(page, "dark", "light")


def test_opened_env_keeps_the_rules_in_both_themes_at_every_size(
    browser: Browser, server: str
) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        wait_for_charts(page)
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page.locator("#env-actions tbody tr").first).to_be_visible()
        check_rules(page, "dark", "light")


def test_many_envs_keep_the_rules(browser: Browser, tmp_path: Path) -> None:
    story = Story(num_rounds=2, num_envs=64, num_steps=8)
    with (
        dashboard(write_run(tmp_path / "run", story.lines())) as process,
        watched_page(browser, process.address) as watched,
    ):
        page = watched.page
        expect(page.locator("#env-grid .env")).to_have_count(64)
        wait_for_charts(page)
        check_rules(page, "dark")


def test_charts_follow_their_panels_without_a_resize_of_the_window(
    browser: Browser, server: str
) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        wait_for_charts(page)
        page.wait_for_function(IS_SETTLED)

        page.evaluate("document.body.style.width = '70%'")

        assert not page.evaluate(IS_SETTLED)
        page.wait_for_function(IS_SETTLED)


WATCH_OVERFLOW = """() => {
    window.overflow = 0;
    window.shapes = new Set();
    const look = () => {
        const chart = document.querySelector("#chart-seeds");
        const frame = chart.getBoundingClientRect();
        const drawn = [...chart.querySelectorAll(".main-svg, .svg-container")];
        const bottom = Math.max(...drawn.map((node) => node.getBoundingClientRect().bottom));
        window.overflow = Math.max(window.overflow, bottom - frame.bottom);
        window.shapes.add(Math.round(frame.height));
        requestAnimationFrame(look);
    };
    look();
}"""


def test_seed_lifecycles_cover_nothing_when_a_round_begins(
    browser: Browser, tmp_path: Path, lines: list[bytes]
) -> None:
    events = [decode_event(line) for line in lines]
    second = next(index for index, event in enumerate(events) if event.round == 1)
    seeded = [
        index
        for index, event in enumerate(events)
        if event.round == 1 and event.event_type is EventType.SEED_GERMINATED
    ]
    run_dir = write_run(tmp_path / "run", lines[:second])
    with dashboard(run_dir) as server, watched_page(browser, server.address) as watched:
        page = watched.page
        wait_for_charts(page)
        page.evaluate(WATCH_OVERFLOW)
        append_lines(run_dir, lines[second : seeded[0] + 1])
        expect(page.locator("#seeds-more")).to_contain_text("1 seed")
        page.wait_for_function("() => window.shapes.size > 1")
        page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        assert page.evaluate("() => window.overflow") < 2


def test_words_say_what_is_measured(browser: Browser, server: str) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        wait_for_charts(page)
        words = page.locator("#seeds-more").inner_text()
        numbers = [int(number) for number in re.findall(r"\d+", words.partition(";")[0])]
        assert numbers[0] == sum(numbers[1:])
        expect(page.locator("#growth")).to_contain_text("Kept, of kept and pruned")
        page.locator("#env-grid .env").first.click()
        expect(page.locator("#coalitions")).to_contain_text("none: host and fossils")


def test_rules_find_what_they_look_for(browser: Browser, server: str) -> None:
    with watched_page(browser, server) as watched:
        page = watched.page
        wait_for_charts(page)
        page.evaluate(PLANTED_FAULTS)
        found = broken_rules(page)
    assert set(found) == {"lowContrast", "unlabelled", "structure", "clipped", "overlapping"}


def test_no_round_or_step_is_marked_twice_on_its_axis(browser: Browser, run_dir: Path) -> None:
    with dashboard(run_dir) as server, watched_page(browser, server.address) as watched:
        wait_for_charts(watched.page)
        for name in ("accuracy", "reward", "steps"):
            marks = watched.page.locator(f"#chart-{name} .xtick text").all_text_contents()
            assert len(marks) == len(set(marks)) > 0, (name, marks)


def test_rounds_and_steps_are_counted_from_one_everywhere(browser: Browser, server: str) -> None:
    with watched_page(browser, server) as watched:
        wait_for_charts(watched.page)
        reported = {
            name: watched.page.locator(f"#chart-{name}").get_attribute("aria-label")
            for name in ("accuracy", "steps", "actions", "policy")
        }
        rounds = watched.page.locator("#seed-round option").all_text_contents()
        watched.page.wait_for_selector("#log .where:not(:empty)")
        places = watched.page.locator("#log .where").all_text_contents()
        watched.page.keyboard.press("j")
        watched.page.keyboard.press("Enter")
        watched.page.wait_for_selector("#lanes svg text")
        watched.page.wait_for_selector("#chart-env .xtick text", state="attached")
        lanes = watched.page.locator("#lanes svg text").all_text_contents()
        charts = ("accuracy", "reward", "steps", "seeds", "env")
        marks = {
            name: watched.page.locator(f"#chart-{name} .xtick text").all_text_contents()
            for name in charts
        }

    assert re.search(r"in round 4, ", reported["accuracy"] or "")
    assert re.search(r"in step 16, ", reported["steps"] or "")
    assert re.search(r"of round 4( now)?:", reported["actions"] or "")
    assert re.search(r"in round 4:", reported["policy"] or "")
    assert rounds == ["newest", "4", "3", "2", "1"]
    numbers = {number for place in places for number in re.findall(r"[rs](\d+)", place)}
    assert numbers
    assert "0" not in {*numbers, *lanes}
    assert not [name for name, texts in marks.items() if "0" in texts or not texts], marks


def test_report_opens_from_disk_without_a_server(browser: Browser, tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", STORY.lines())
    output = tmp_path / "report.html"
    write_report(run_dir, output)
    with watched_page(browser, output.as_uri()) as watched:
        page = watched.page
        wait_for_charts(page)
        expect(page.locator("#verdict-headline")).to_contain_text("Finished")
        expect(page.locator("#env-grid .env")).to_have_count(STORY.num_envs)
        page.locator("#env-grid .env").first.click()
        expect(page.locator("#coalitions tbody tr").first).to_be_visible()
        assert page.evaluate(RULES)["structure"] == []
