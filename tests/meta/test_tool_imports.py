"""Which tests may import tools: those of a tool, not those that only need a helper."""

import ast
from pathlib import Path

from tools.source_modules import ROOT

TESTS = ROOT / "tests"

ABOUT_TOOLS = ("meta", "reliability", "tools")
"""Folders whose tests are about tools: conventions, short forms of the soak tests, the rest."""

USERS = {
    "integration/test_learner_on_probes.py": "tools.probes",
    "integration/test_rollouts_on_probes.py": "tools.probes",
    "nissa/sinks/test_fields.py": "tools.generate_sink_docs",
    "simic/training/checkpoints/test_builtin.py": "tools.ship_policy",
    "simic/rewards/test_rewards_docs.py": "tools.source_modules",
    "tamiyo/test_observation_docs.py": "tools.generate_observation_docs",
    "tolaria/test_fences.py": "tools.source_modules",
}
"""Tests elsewhere, and the tool that each checks or reads the source with."""


def imported_tools(path: Path) -> set[str]:
    """Return the tools that a file imports: the first two parts of their names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in names]
    return {".".join(part[:2]) for part in parts if part[0] == "tools"}


def test_helpers_of_tests_stand_in_tests() -> None:
    found = {
        path.relative_to(TESTS).as_posix(): " ".join(sorted(tools))
        for path in TESTS.rglob("*.py")
        if path.relative_to(TESTS).parts[0] not in ABOUT_TOOLS
        if (tools := imported_tools(path))
    }
    assert found == USERS
