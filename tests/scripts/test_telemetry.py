"""`esper-telemetry` as its user calls it."""

import json
import subprocess
import sys

import pytest

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
