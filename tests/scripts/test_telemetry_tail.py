"""`esper-telemetry tail` and `query` from the command line."""

import csv
import io
import json
import sys
from pathlib import Path

import pytest
from tests.nissa.fake_run import FakeRun
from tests.nissa.live.test_client import FakeServer, ServerConnection, event, send, serving

from esper.leyline.live import Gap, Subscription
from esper.nissa.reading import tailing
from esper.scripts.telemetry import main

NUM_EVENTS = len(list(FakeRun().lines()))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return FakeRun().write(tmp_path)


def test_pipe_gets_the_lines_as_they_are(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tail", str(run)]) == 0

    assert capsys.readouterr().out == (run / "events.jsonl").read_text()


def test_terminal_gets_readable_lines(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)

    assert main(["tail", str(run), "--type", "run_finished"]) == 0

    assert "completed after 2 rounds" in capsys.readouterr().out


def test_filters_choose_events(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--type", "EPOCH_COMPLETED", "--env", "1", "--since", "100"]

    assert main(["tail", str(run), *arguments]) == 0

    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events
    assert all(item["env_id"] == 1 and item["seq"] >= 100 for item in events)


def test_stats_replace_the_lines(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tail", str(run), "--stats"]) == 0

    out = capsys.readouterr().out
    assert "EPOCH_COMPLETED                32" in out
    assert f"{NUM_EVENTS} events in " in out
    assert "event_type" not in out


def test_interrupt_ends_quietly(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tailing.follow_file, "__kwdefaults__", {"wait": interrupt})

    assert main(["tail", "-f", str(run)]) == 130

    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == NUM_EVENTS
    assert captured.err == ""


def test_live_events_and_gaps_are_shown_apart(capsys: pytest.CaptureFixture[str]) -> None:
    def script(connection: ServerConnection, _: Subscription) -> None:
        send(connection, event(5), Gap(num_dropped=3, first_seq=6, last_seq=8), event(9))

    server = FakeServer(script)
    with serving(server) as url:
        assert main(["tail", url, "--type", "last_action", "--env", "2"]) == 0

    captured = capsys.readouterr()
    assert captured.out.encode() == event(5) + b"\n" + event(9) + b"\n"
    assert "3 events lost (seq 6 to 8)" in captured.err
    subscription = server.subscriptions[0]
    assert (subscription.types, subscription.env_ids) == (["LAST_ACTION"], [2])


def test_address_without_a_server_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tail", "ftp://x"]) == 2
    assert "expected an address" in capsys.readouterr().err


def test_query_prints_tables_json_and_csv(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT round, count(*) AS num FROM epochs GROUP BY round ORDER BY round"

    assert main(["query", str(run), sql]) == 0
    assert capsys.readouterr().out == "round  num\n    0   16\n    1   16\n"
    assert main(["query", str(run), sql, "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [{"round": 0, "num": 16}, {"round": 1, "num": 16}]
    assert main(["query", str(run), sql, "--format", "csv"]) == 0
    assert list(csv.reader(io.StringIO(capsys.readouterr().out)))[1] == ["0", "16"]


def test_query_lists_its_views_and_reports_mistakes(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", "--views"]) == 0
    assert "how did each env's accuracy and loss evolve?" in capsys.readouterr().out
    assert main(["query", str(run)]) == 2
    assert main(["query", str(run), "SELECT nothing"]) == 2
    assert main(["query", str(run), "SELECT", "run.json", "FROM", "rounds"]) == 2
    assert "put the statement in quotes" in (errors := capsys.readouterr().err)
    assert errors.count("\n") == 3


def test_unknown_event_type_is_refused_with_the_one_that_was_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun(num_rounds=1, num_envs=1, num_steps=1).write(tmp_path)
    assert main(["tail", str(run), "--type", "seed_germinate"]) == 2
    error = capsys.readouterr().err
    assert "unknown event type 'SEED_GERMINATE'; did you mean 'SEED_GERMINATED'?" in error
    assert error.count("\n") == 1
