"""`esper-telemetry` as its user calls it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.nissa.fake_run import FakeRun

from esper.leyline.telemetry import EventType
from esper.scripts.telemetry import main


def test_schema_lists_every_event_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["discriminator"]["mapping"]) == set(EventType)


def test_a_closed_pipe_ends_quietly() -> None:
    command = f"{sys.executable} -m esper.scripts.telemetry schema | head -n 1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "{\n", "")


ONE_RUN_COMMANDS = {
    "validate": ["validate", "{}"],
    "report": ["report", "{}"],
    "tail": ["tail", "{}"],
    "diff": ["diff", "{}", "latest"],
    "capture": ["baseline", "capture", "{}", "-o", "out.json"],
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for run_id in ("0a1b2c3d", "0a1b9999"):
        FakeRun(num_rounds=1, run_id=run_id).write(Path("runs"))
    return Path("runs")


@pytest.mark.parametrize("words", ONE_RUN_COMMANDS.values(), ids=ONE_RUN_COMMANDS)
def test_directory_of_runs_where_one_is_needed_is_one_sentence(
    runs: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format("runs") for word in words]) == 2
    assert capsys.readouterr().err == (
        "esper-telemetry: runs: contains 2 runs; name one of them, such as "
        "runs/20260101T000000Z_0a1b9999, or runs/latest for the newest\n"
    )


@pytest.mark.parametrize("name", ONE_RUN_COMMANDS)
def test_every_command_takes_a_run_by_the_beginning_of_its_id(
    runs: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format("0a1b2") for word in ONE_RUN_COMMANDS[name]]
    assert main(words) == 0, capsys.readouterr().err
    assert main(["count", "0a1b2"]) == 0
