"""Files that are generated, or that promise something, are true."""

import ast
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from tools.source_modules import ROOT

from esper.leyline.telemetry import events_schema
from esper.scripts.telemetry import main

REQUIRED_ROWS = {
    *(f"R{number}" for number in (*range(1, 9), *range(10, 39))),
    *(f"U{number}" for number in range(1, 13)),
}
NOT_MET: frozenset[str] = frozenset()
"""Rows that say so; a row leaves this set together with its first test."""
NAMED_BY_THE_DOCUMENTS = (
    "tests/test_import_isolation.py",
    "tests/meta/test_factored_action_contracts.py",
    "tests/scripts/test_train.py",
    "tests/simic/test_gpu_preload_batch_size.py",
    "tests/simic/test_reward_normalizer_checkpoint.py",
    "tests/simic/rewards/escrow/test_escrow_wiring.py",
    "tests/simic/training/test_entropy_annealing.py",
    "tests/simic/test_vectorized.py",
)


class Requirement(NamedTuple):
    """A row of the map."""

    where: str
    tests: str


def requirement_rows() -> dict[str, Requirement]:
    text = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([RU]\d+) \|.*\| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    assert len(rows) == len({number for number, *_ in rows}), "a requirement stands there twice"
    return {number: Requirement(where, tests) for number, where, tests in rows}


def functions_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, functions)}


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
    for number, row in requirement_rows().items():
        paths = re.findall(r"`([\w./-]+\.\w+|[\w./-]+/)`", row.where)
        assert paths or number in NOT_MET, f"{number} says {row.where!r}"
        missing = [path for path in paths if not (ROOT / path).exists()]
        assert missing == [], f"{number} points to {missing}"


def test_every_requirement_names_tests_that_exist() -> None:
    for number, row in requirement_rows().items():
        named = re.findall(r"`(tests/[\w./]+\.py)::(test_\w+)`", row.tests)
        assert row.tests.count("`") == 2 * len(named), f"{number} names something else: {row.tests}"
        assert bool(named) != (number in NOT_MET), f"{number} is met exactly if it names a test"
        for path, name in named:
            assert name in functions_in(ROOT / path), f"{number}: {path} has no {name}"


def test_test_files_that_the_documents_name_exist() -> None:
    for path in NAMED_BY_THE_DOCUMENTS:
        assert any(name.startswith("test_") for name in functions_in(ROOT / path)), path
    assert list((ROOT / "tests" / "integration").glob("test_*simic*.py"))


def test_every_installed_package_is_pinned_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert "torch==2.13.0" in pins
