"""The console: a screen on a terminal, whole lines elsewhere, and a terminal left as it was."""

import io
import re
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.karn.story import STARTED_TS, Story, Wire, failure, started

from esper.karn.console.console import Console
from esper.karn.console.formatting import duration, number, sparkline
from esper.leyline import payloads
from esper.leyline.printable import printable
from esper.leyline.telemetry import Event, EventScope

STORY = list(Story(num_rounds=3, num_envs=3, num_steps=12).events())
ESCAPE = "\x1b"


def show(console: Console, events: list[Event]) -> None:
    for event in events:
        console.on_event(event)


def piped(events: list[Event], *, is_quiet: bool = False) -> str:
    stream = io.StringIO()
    show(Console(stream, is_quiet=is_quiet), events)
    return stream.getvalue()


def screen_of(events: list[Event], *, width: int = 120, height: int = 30) -> list[str]:
    stream = io.StringIO()
    console = Console(
        stream, is_terminal=True, width=width, height=height, clock=lambda: events[-1].ts
    )
    show(console, events)
    assert stream.getvalue() == ""
    console.draw()
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()


def test_pipe_gets_one_line_per_milestone_and_no_escape() -> None:
    text = piped(STORY)
    lines = text.splitlines()
    assert ESCAPE not in text
    assert "\r" not in text
    assert len(lines) == 1 + 3 + 2  # start, rounds, a failed env and a rollback
    assert [line.split()[2] for line in lines if " round " in line] == ["1/3", "2/3", "3/3"]


def test_milestone_line_stays_one_line_however_long() -> None:
    long = payloads.EnvFailed(
        phase="train", batch=1, slot_id=None, layer=None, error_type="E", message="x" * 500
    )
    text = piped([Wire().event(long, EventScope(0, 0, 0, 0))])
    assert text.count("\n") == 1


def test_foreign_text_cannot_steer_the_terminal() -> None:
    evil = payloads.EnvFailed(
        phase="train",
        batch=1,
        slot_id=None,
        layer=None,
        error_type="E",
        message="\x1b]0;owned\x07\x1b[2J\nnext [bold red]line[/]",
    )
    events = [Wire().event(started(Story())), Wire().event(evil, EventScope(0, 0, 0, 0))]
    assert ESCAPE not in piped(events)
    assert piped(events).count("\n") == 2
    assert "[bold red]line[/]" in piped(events)
    assert any("[bold red]line[/]" in line for line in screen_of(events, width=200))


def test_repeated_alarm_is_written_once_and_counted_in_the_summary() -> None:
    wire = Wire()
    anomaly = payloads.GradientAnomaly(kind="vanishing", slot_id="r0c0", layer=None, norm=0.0)
    events = [wire.event(anomaly, EventScope(0, step, 1, 1)) for step in range(50)]
    stream = io.StringIO()
    console = Console(stream, clock=lambda: STARTED_TS)
    show(console, events)
    console.finish()
    assert stream.getvalue().count("vanishing gradient") == 1
    assert re.search(r"alarms +50", stream.getvalue())


def test_quiet_says_only_what_is_grave() -> None:
    text = piped(STORY, is_quiet=True)
    assert [line.split()[1] for line in text.splitlines()] == ["error:", "critical:"]


def test_quiet_has_no_summary() -> None:
    stream = io.StringIO()
    Console(stream, is_quiet=True).finish()
    assert stream.getvalue() == ""


def test_summary_shows_how_the_run_ended() -> None:
    stream = io.StringIO()
    console = Console(stream, footer=("log: runs/x/events.jsonl",), clock=lambda: STARTED_TS)
    show(console, STORY)
    console.finish()
    summary = stream.getvalue().splitlines()
    assert any(re.match(r"run +completed", line) for line in summary)
    assert any("3 of 3" in line for line in summary)
    assert any("runs/x/events.jsonl" in line for line in summary)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_summary_ends_with_what_became_of_each_blueprint(is_terminal: bool) -> None:
    boards = [event.data for event in STORY if isinstance(event.data, payloads.ScoreboardUpdated)]
    expected = {
        score.blueprint: [score.num_germinated, score.num_fossilized, score.num_pruned]
        for score in boards[-1].blueprints
    }
    stream = io.StringIO()
    console = Console(stream, is_terminal=is_terminal, width=100, clock=lambda: STARTED_TS)
    show(console, STORY)
    console.finish()

    text = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    rows = text.partition("what grew")[2]
    assert "germinated  kept  pruned  contribution        age" in rows.splitlines()[0]
    found = [line.split() for line in rows.splitlines()[1:]]
    assert {row[0]: [int(word) for word in row[1:4]] for row in found} == expected
    kept = [int(row[2]) for row in found]
    assert kept == sorted(kept, reverse=True)
    assert all(row[4] == ("+2.50" if int(row[2]) else "-") for row in found)


def test_summary_shows_paths_in_whole_lines_however_long() -> None:
    stream = io.StringIO()
    footer = ("log  " + "deep/" * 40, "dashboard  http://127.0.0.1:8765/")
    Console(stream, width=60, footer=footer, clock=lambda: STARTED_TS).finish()
    assert stream.getvalue().splitlines()[-2:] == list(footer)


def test_summary_of_a_run_that_grew_nothing_has_no_table_of_it() -> None:
    stream = io.StringIO()
    console = Console(stream, clock=lambda: STARTED_TS)
    show(console, [Wire().event(started(Story()))])
    console.finish()
    assert "what grew" not in stream.getvalue()


def test_synthetic_data_is_announced_at_the_start_and_at_the_end() -> None:
    facts = started(Story())
    synthetic = type(facts)(
        **{name: getattr(facts, name) for name in facts.__struct_fields__}
        | {"data_source": "synthetic"}
    )
    stream = io.StringIO()
    console = Console(stream, clock=lambda: STARTED_TS)
    show(console, [Wire().event(synthetic)])
    console.finish()
    assert stream.getvalue().lower().count("synthetic") >= 2


def test_screen_shows_envs_slots_policy_and_alarms() -> None:
    text = "\n".join(screen_of(STORY[:-1]))
    assert "round 3/3, step 12/12" in text
    assert re.search(r"^0 +✓ ", text, re.MULTILINE)
    assert re.search(r"(train|blend|hold) \d\.\d\d", text)
    assert "KL divergence" in text
    assert "host rolled back" in text


@pytest.mark.parametrize("height", [16, 20, 40])
def test_screen_fits_the_terminal_with_many_envs(height: int) -> None:
    events = list(Story(num_rounds=1, num_envs=64, num_steps=2, has_trouble=False).events())
    lines = screen_of(events, height=height)
    assert len(lines) <= height
    assert any("more" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_screen_never_wraps(width: int) -> None:
    assert all(len(line) <= width for line in screen_of(STORY[:-1], width=width))


def test_screen_before_the_first_event_waits() -> None:
    stream = io.StringIO()
    console = Console(stream, is_terminal=True, width=80, clock=lambda: 0.0)
    console.draw()
    assert "Waiting for the first event" in stream.getvalue()


@pytest.mark.anyio
async def test_live_screen_gives_the_cursor_back_when_cancelled() -> None:
    stream = io.StringIO()
    console = Console(stream, is_terminal=True, width=80, clock=lambda: STARTED_TS)
    show(console, STORY)
    with anyio.move_on_after(0.3):
        await console.run()
    shown, hidden = stream.getvalue().rfind("\x1b[?25h"), stream.getvalue().rfind("\x1b[?25l")
    assert shown > hidden >= 0


@pytest.mark.anyio
async def test_off_a_terminal_the_task_writes_nothing() -> None:
    stream = io.StringIO()
    with anyio.move_on_after(0.05):
        await Console(stream).run()
    assert stream.getvalue() == ""


def test_stream_that_cannot_write_a_sign_gets_a_question_mark() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    evil = failure()
    show(Console(stream), [Wire().event(evil, EventScope(0, 0, 0, 0)), *STORY])
    stream.flush()
    assert raw.getvalue().isascii()


def test_missing_numbers_are_dashes_and_zero_is_zero() -> None:
    assert (number(None, unit=" %"), number(0.0, unit=" %")) == ("-", "0.00 %")
    assert (duration(None), duration(0.0)) == ("-", "0 s")


def test_sparkline_leaves_gaps_for_what_was_not_measured() -> None:
    assert sparkline([0.0, None, 1.0]) == "▁ █"
    assert sparkline([0.0, None, 1.0], is_ascii=True) == "_ #"
    assert sparkline([None]) == ""


def test_printable_keeps_words_and_escapes_controls() -> None:
    assert printable("héllo ✓\x1b[0m\n") == r"héllo ✓\x1b[0m\n"


@pytest.mark.parametrize("variable", ["TERM=dumb", "NO_COLOR=1"])
def test_terminal_that_is_to_stay_plain_gets_the_lines_of_a_pipe(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, value = variable.partition("=")
    monkeypatch.setenv(name, value)
    stream = io.StringIO()
    console = Console(stream, is_terminal=True, width=80)
    show(console, STORY)
    assert not console.is_live
    assert ESCAPE not in stream.getvalue()
    assert stream.getvalue() == piped(STORY)


def interrupted(run_dir: Path | None) -> str:
    """Return the summary of a run that was stopped in the middle of its last round."""
    events = list(Story(num_rounds=3, num_envs=2, num_steps=20, has_trouble=True).events())
    last = [event for event in events if event.round == 2]
    cut = events.index(last[len(last) // 2])
    end = payloads.RunFinished(
        status="interrupted",
        reason="SIGINT",
        rounds_completed=2,
        episodes_completed=4,
        best_accuracy_pct=70.0,
        final_accuracy_pct=70.0,
        duration_s=9.0,
    )
    stream = io.StringIO()
    console = Console(stream, width=100, run_dir=run_dir)
    show(console, events[:cut])
    console.on_event(msgspec.structs.replace(events[-1], seq=events[cut].seq, data=end))
    console.finish()
    return stream.getvalue()


def test_interrupted_run_ends_with_the_command_that_resumes_it() -> None:
    text = interrupted(Path("runs/my run"))
    assert text.splitlines()[-1] == "esper-train ppo --resume 'runs/my run'"
    assert "--resume" not in interrupted(None)


def test_totals_of_an_interrupted_run_are_those_of_its_table() -> None:
    text = interrupted(None)
    totals = re.search(r"seeds +(\d+) germinated, (\d+) kept, (\d+) pruned", text)
    assert totals is not None
    rows = re.findall(r"^\w+ +(\d+) +(\d+) +(\d+) +[-+]", text, re.MULTILINE)
    assert rows
    assert [int(total) for total in totals.groups()] == [
        sum(int(row[index]) for row in rows) for index in range(3)
    ]


def test_summary_names_its_alarms() -> None:
    found = re.search(r"alarms +(\d+): (.*)", interrupted(None))
    assert found is not None
    counts = [int(part.split()[0]) for part in found[2].split(", ")]
    assert sum(counts) == int(found[1])
    assert "1 env failed" in found[2]
