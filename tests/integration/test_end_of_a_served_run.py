"""However a served run ends, its file, foreign clients and our own see the same last event."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.served import (
    ENDLESS,
    SMALL,
    WAIT_S,
    HeldClient,
    ServedRun,
    close_reading_end,
    events_over_http,
    interrupt,
    is_gone,
    let_be,
    listening,
    served_run,
    tailing,
    terminate,
    unread_connection,
)

RUN_ENDED = (1000, "run ended")
NUMBERS_FAIL = (*SMALL, "--rounds", "50", "--set", "training.lr=1e30")


@pytest.mark.parametrize(
    ("flags", "end", "status", "code"),
    [
        pytest.param(SMALL, let_be, "completed", 0, id="completed"),
        pytest.param(ENDLESS, interrupt, "interrupted", 130, id="SIGINT"),
        pytest.param(ENDLESS, terminate, "interrupted", 130, id="SIGTERM"),
        pytest.param(NUMBERS_FAIL, let_be, "failed", 1, id="failed"),
        pytest.param(SMALL, close_reading_end, "completed", 0, id="pipe closed"),
    ],
)
def test_a_foreign_client_and_our_own_get_every_event_and_a_clean_close(
    flags: tuple[str, ...],
    end: Callable[[ServedRun], None],
    status: str,
    code: int,
    tmp_path: Path,
) -> None:
    with served_run(tmp_path, *flags) as run, tailing(run) as tail:
        with listening(run) as received:
            end(run)
        assert tail.stdout is not None
        tailed = tail.stdout.read().splitlines()
        _, errors = tail.communicate(timeout=WAIT_S)
        assert run.process.wait(WAIT_S) == code
        lines = run.log_lines()

    last = json.loads(lines[-1])
    assert (last["event_type"], last["data"]["status"]) == ("RUN_FINISHED", status)
    assert received.lines == tailed == lines
    assert (received.close_code, received.close_reason) == RUN_ENDED
    # A tail that tried to connect again would say so.
    assert (tail.returncode, errors) == (0, "")
    assert is_gone(run.port)


def test_file_client_and_http_agree_before_the_server_is_gone(tmp_path: Path) -> None:
    with served_run(tmp_path, *SMALL) as run:
        client = HeldClient(run)
        client.subscribe()
        client.receive_until("RUN_FINISHED")
        over_http = events_over_http(run)
        close = client.close()
        assert run.process.wait(WAIT_S) == 0
        lines = run.log_lines()

    assert client.lines == over_http == lines
    assert close == RUN_ENDED


def test_a_client_that_reads_nothing_and_answers_nothing_delays_no_other(tmp_path: Path) -> None:
    with served_run(tmp_path, *SMALL) as run:
        stuck = unread_connection(run)
        with listening(run) as received:
            pass
        assert run.process.wait(WAIT_S) == 0
        lines = run.log_lines()
        stuck.close()

    assert received.lines == lines
    assert (received.close_code, received.close_reason) == RUN_ENDED


def test_the_summary_names_a_command_that_shows_the_run_again(tmp_path: Path) -> None:
    with served_run(tmp_path, *SMALL) as run:
        ended = run.wait()

    assert ended.code == 0
    assert run.address not in ended.output
    (line,) = [line for line in ended.output.splitlines() if "esper-telemetry serve" in line]
    command = line[line.index("esper-telemetry") :].split()
    again = subprocess.Popen(
        [sys.executable, "-m", "esper.scripts.telemetry", *command[1:], "--address", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert again.stdout is not None
        assert again.stdout.readline().startswith("dashboard at http://127.0.0.1:")
    finally:
        again.kill()
        again.communicate(timeout=WAIT_S)
