"""Commands work whatever surrounds them: streams, home, user, locale, terminal, optimization."""

import http.client
import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.builders.tiny_runs import short_run
from tests.builders.tiny_tasks import TINY
from tests.integration.served import ENDLESS, served_run
from tools.soak.surroundings import CASES, check_reading, check_training, is_possible

from esper.leyline.printable import printable
from esper.nissa.analysis.validation import validate_run

BY_NAME = {case.name: case for case in CASES}
QUICK = ("all closed", "both full", "unknown user without HOME", "terminal of one place")
WAIT_S = 100
EVIL = "\x1b]0;owned\x07\x9b2J\u202e"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return short_run(tmp_path_factory.mktemp("run"), TINY)


@pytest.mark.parametrize("name", QUICK)
def test_run_completes_with_a_valid_log(name: str, tmp_path: Path) -> None:
    if not is_possible(BY_NAME[name]):
        pytest.skip("this machine cannot make these surroundings")
    check_training(tmp_path, BY_NAME[name])


@pytest.mark.parametrize("name", [*QUICK[:2], "-OO"])
def test_reading_commands_have_the_right_exit_code(name: str, run_dir: Path) -> None:
    check_reading(run_dir, BY_NAME[name])


def test_log_never_becomes_a_standard_stream(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from esper.nissa.storage.files import FileSystem\n"
        "for number in (0, 1, 2): os.close(number)\n"
        "opened = FileSystem().open(Path(sys.argv[1]), os.O_WRONLY | os.O_CREAT)\n"
        "os._exit(0 if opened > 2 else 1)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    assert subprocess.run(command, timeout=WAIT_S, check=False).returncode == 0


def test_run_goes_on_when_the_reader_of_its_output_leaves(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "esper.scripts.train", "wait", "--telemetry-dir", str(tmp_path)),
        *("--task", "digits", "--rounds", "3", "--envs", "1", "--episode-length", "1"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.communicate(timeout=WAIT_S)[1]
    assert (process.returncode, errors) == (0, b"")
    (found,) = tmp_path.iterdir()
    assert validate_run(found).is_valid
    last = json.loads((found / "events.jsonl").read_bytes().splitlines()[-1])
    assert last["data"]["status"] == "completed"


def test_dashboard_goes_on_when_the_reader_of_the_output_leaves(tmp_path: Path) -> None:
    with served_run(tmp_path, *ENDLESS) as run:
        assert run.process.stdout is not None
        run.process.stdout.close()
        before, deadline_s = run.num_logged(), time.monotonic() + WAIT_S
        while run.num_logged() < before + 100:  # several rounds, each of which prints
            assert time.monotonic() < deadline_s, "the run made no progress"
            time.sleep(0.02)
        connection = http.client.HTTPConnection("127.0.0.1", run.port, timeout=WAIT_S)
        with closing(connection):
            connection.request("GET", "/api/events?types=RUN_FINISHED")
            assert connection.getresponse().status == 200
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(WAIT_S) == 130
        assert run.process.stderr is not None
        assert run.process.stderr.read() == ""
    assert validate_run(run.run_dir).is_valid


def on_terminal(*arguments: str) -> str:
    """Run `esper-telemetry` on a terminal; return everything that it wrote there."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "esper.scripts.telemetry", *arguments]
    environment = os.environ | {"NO_COLOR": "1"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    written = bytearray()
    try:
        while piece := os.read(ours, 1 << 16):
            written += piece
    except OSError:  # how a terminal tells that its other side was closed
        pass
    finally:
        os.close(ours)
    process.wait(WAIT_S)
    return written.decode(errors="surrogateescape")


@pytest.fixture
def evil_run(tmp_path: Path) -> Path:
    """Return a log whose name, types and texts would steer a terminal."""
    head = {"seq": 0, "ts": 1.0, "run_id": EVIL, "group": EVIL, "severity": "info"}
    lines = [
        {"event_type": EVIL, **head, "data": {"text": EVIL}},
        {"event_type": "RUN_FINISHED", **head, "round": EVIL, "data": {"reason": EVIL}},
    ]
    path = tmp_path / f"log{EVIL}.jsonl"
    texts = [json.dumps(line, ensure_ascii=False).encode() for line in lines]
    path.write_bytes(b"\n".join([*texts, EVIL.encode(), b"\xff\x1b[2J", b""]))
    return path


@pytest.mark.parametrize(
    "command",
    [
        ("tail",),
        ("tail", "--json"),
        ("tail", "--stats"),
        ("count",),
        ("count", "--json"),
        ("validate",),
        ("diff", None),
        ("query", "select * from raw_events"),
        ("query", "--format", "csv", "select * from raw_events"),
        ("no such command" + EVIL,),
    ],
    ids=str,
)
def test_control_characters_of_a_log_reach_no_terminal(
    command: tuple[str | None, ...], evil_run: Path
) -> None:
    name, *rest = command
    assert name is not None
    path = str(evil_run)
    last = rest[-1:] if name == "query" else []
    flags = [path if it is None else it for it in (rest[:-1] if last else rest)]
    written = on_terminal(name, *flags, path, *map(str, last))
    assert written.strip()
    assert "Traceback" not in written
    lines = written.replace("\r\n", "\n").split("\n")
    assert all(printable(line) == line for line in lines), written
