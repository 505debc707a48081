"""Files that are generated, or that promise something, are true."""

import json
import re

import pytest
from tests.meta.sources import ROOT

from esper.leyline.telemetry import events_schema
from esper.scripts.telemetry import main

REQUIRED_ROWS = {f"R{number}" for number in (*range(1, 9), *range(10, 33), 37)}


def requirement_rows() -> dict[str, str]:
    text = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (R\d+) \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    assert len(rows) == len({number for number, _ in rows}), "a requirement stands there twice"
    return dict(rows)


def test_committed_event_schema_is_what_the_structs_say() -> None:
    path = ROOT / "telemetry" / "schema" / "events.schema.json"
    assert json.loads(path.read_text(encoding="utf-8")) == events_schema(), "run 'make schema'"


def test_committed_event_schema_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schema"]) == 0
    path = ROOT / "telemetry" / "schema" / "events.schema.json"
    assert path.read_text(encoding="utf-8") == capsys.readouterr().out, "run 'make schema'"


def test_requirements_map_has_every_requirement() -> None:
    assert set(requirement_rows()) == REQUIRED_ROWS


def test_requirements_map_points_to_files_that_exist() -> None:
    for number, where in requirement_rows().items():
        paths = re.findall(r"`([\w./-]+\.\w+|[\w./-]+/)`", where)
        assert paths or where.strip().startswith("planned"), f"{number} says {where!r}"
        missing = [path for path in paths if not (ROOT / path).exists()]
        assert missing == [], f"{number} points to {missing}"


def test_every_installed_package_is_pinned_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert "torch==2.13.0" in pins
