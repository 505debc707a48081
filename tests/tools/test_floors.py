"""The floors are read from pyproject.toml, pinned, and each has tests that would miss it."""

import sys

import pytest
from packaging.requirements import Requirement
from tests.meta.test_distribution import PYPROJECT
from tools.floors import (
    ROOT,
    TESTS,
    constraint_lines,
    development_tools,
    lowest,
    lowest_versions,
    main,
    python_mismatch,
)

PROJECT = {
    "build-system": {"requires": ["hatchling>=1.27"]},
    "project": {
        "name": "esper-grow",
        "requires-python": ">=3.11",
        "dependencies": ["torch>=2.13", "Backports.zstd>=1.0; python_version < '3.14'"],
        "optional-dependencies": {
            "query": ["duckdb>=1.1.1,<3"],
            "export": ["onnx>=1.23.2"],
            "dev": ["esper-grow[export,query]", "onnxruntime>=1.31", "pytest>=8"],
        },
    },
}


def test_lower_bounds_of_build_runtime_and_extras_are_found() -> None:
    assert lowest_versions(PROJECT) == {
        "hatchling": "1.27",
        "torch": "2.13",
        "backports-zstd": "1.0",
        "duckdb": "1.1.1",
    }


def test_development_tools_leave_out_extras_that_need_newer_versions() -> None:
    assert development_tools(PROJECT) == ["pytest>=8"]


@pytest.mark.parametrize("line", ["rich", "rich<15", "rich==13.0", "rich>13"])
def test_requirement_without_a_lower_bound_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="expected one bound"):
        lowest(Requirement(line))


def test_floors_take_the_place_of_their_pins_and_other_pins_stay() -> None:
    pins = ["# comment", "", "backports.zstd==1.8.0", "click==8.5.1", "torch==2.15.0"]
    lines = constraint_lines({"torch": "2.13", "backports-zstd": "1.0"}, pins)
    assert lines == ["torch==2.13", "backports-zstd==1.0", "click==8.5.1"]


def test_floors_are_tried_with_the_oldest_python_alone() -> None:
    oldest = python_mismatch({"project": {"requires-python": ">=3.99"}})
    assert oldest is not None
    assert "PYTHON=python3.99" in oldest
    running = f">={sys.version_info.major}.{sys.version_info.minor}"
    assert python_mismatch({"project": {"requires-python": running}}) is None


def test_every_dependency_of_a_user_has_tests_that_exist() -> None:
    assert TESTS.keys() == lowest_versions(PYPROJECT).keys()
    missing = [path for paths in TESTS.values() for path in paths if not (ROOT / path).exists()]
    assert missing == []


def test_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--fast"]) == 2
    assert "Usage: python -m tools.floors" in capsys.readouterr().err
