"""Install the lowest versions that pyproject.toml allows, and use Esper with them.

Usage: python -m tools.floors

A scratch environment gets Esper's wheel, built and installed with every lower bound as an exact
version: those of the build, of `dependencies` and of the extras below. Everything else is as in
constraints.txt. tools/smoke.py runs there before any development tool is installed, then the tests
that exercise each dependency.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("query",)
"""The others need newer versions of numpy, anyio or Starlette than Esper itself."""
TESTS: dict[str, tuple[str, ...]] = {
    "anyio": (
        "tests/nissa/bus/test_hub.py",
        "tests/tolaria/test_event_loop.py",
        "tests/tolaria/test_lanes.py",
        "tests/tolaria/test_supervisor.py",
    ),
    "backports-zstd": ("tests/nissa/reading/test_lines.py", "tests/nissa/reading/test_query.py"),
    "duckdb": ("tests/nissa/reading/test_query.py",),
    "hatchling": ("tests/test_wheel.py",),
    "msgspec": (
        "tests/leyline/test_jobs.py",
        "tests/leyline/test_telemetry.py",
        "tests/nissa/analysis/test_validation.py",
    ),
    "numpy": (
        "tests/simic/evaluation/test_statistics.py",
        "tests/simic/training/test_policy_controller.py",
        "tests/tamiyo/test_features.py",
        "tests/tamiyo/test_masks.py",
    ),
    "orjson": ("tests/nissa/analysis/test_counting.py", "tests/scripts/test_telemetry_count.py"),
    "plotly": (
        "tests/karn/report/test_comparison_page.py",
        "tests/karn/web/test_dashboard_browser.py",
    ),
    "rich": ("tests/karn/console/test_console.py",),
    "starlette": ("tests/karn/web/test_routes.py", "tests/nissa/live/test_security.py"),
    "torch": ("tests/kasmina/test_layers.py", "tests/simic/agent/test_ppo_update.py"),
    "uvicorn": ("tests/nissa/live/test_server.py",),
    "websockets": ("tests/nissa/live/test_client.py", "tests/scripts/test_telemetry_tail.py"),
}
"""The tests that would fail if a dependency were too old, by its normalized name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Try the lowest versions and return an exit code."""
    if sys.argv[1:] if argv is None else argv:
        print(__doc__, file=sys.stderr)
        return 2
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if (error := python_mismatch(pyproject)) is not None:
        print(f"floors: {error}", file=sys.stderr)
        return 2
    floors = lowest_versions(pyproject)
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory(prefix="esper-floors-") as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("\n".join(constraint_lines(floors, pins)) + "\n")
        try:
            try_out(Path(folder), constraints, development_tools(pyproject))
        except subprocess.CalledProcessError as failed:
            command = shlex.join(map(str, failed.cmd))
            print(f"floors: exit code {failed.returncode} from {command}", file=sys.stderr)
            return 1
    print("floors: these work: " + ", ".join(f"{name} {floors[name]}" for name in sorted(floors)))
    return 0


def python_mismatch(pyproject: Mapping[str, Any]) -> str | None:
    """Return why this interpreter cannot test the floors; their wheels need the oldest Python."""
    oldest = lowest(Requirement(f"python{pyproject['project']['requires-python']}"))
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running == oldest:
        return None
    return f"needs Python {oldest}, not {running}: make clean floors PYTHON=python{oldest}"


def lowest_versions(pyproject: Mapping[str, Any]) -> dict[str, str]:
    """Return the lower bound of everything that a user installs, by normalized name."""
    project = pyproject["project"]
    lines = [
        *pyproject["build-system"]["requires"],
        *project["dependencies"],
        *(line for extra in EXTRAS for line in project["optional-dependencies"][extra]),
    ]
    requirements = map(Requirement, lines)
    return {canonicalize_name(each.name): lowest(each) for each in requirements}


def development_tools(pyproject: Mapping[str, Any]) -> list[str]:
    """Return what the tests need besides Esper.

    Without the extras that `dev` adds, and what only their tests run.
    """
    project = pyproject["project"]
    lines = project["optional-dependencies"]["dev"]
    left_out = {project["name"], "onnxruntime"}
    return [line for line in lines if Requirement(line).name not in left_out]


def lowest(requirement: Requirement) -> str:
    """Return the lower bound of a requirement."""
    bounds = [each.version for each in requirement.specifier if each.operator == ">="]
    if len(bounds) != 1:
        raise ValueError(f"{requirement}: expected one bound with '>='")
    return bounds[0]


def constraint_lines(floors: Mapping[str, str], pins: Iterable[str]) -> list[str]:
    """Return the floors as pins, and the pins of everything else."""
    others = [pin for pin in pins if pin and not pin.startswith("#")]
    return [
        *(f"{name}=={version}" for name, version in floors.items()),
        *(pin for pin in others if canonicalize_name(pin.partition("==")[0]) not in floors),
    ]


def try_out(folder: Path, constraints: Path, tools: Sequence[str]) -> None:
    """Install into a fresh environment, use what is installed, then test it with more tools."""
    venv.create(folder / "environment", with_pip=True, symlinks=True)
    python = folder / "environment" / "bin" / "python"
    # pip reads the second one for the environments in which it builds.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment |= dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(constraints))
    install = (python, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:")
    call(*install, f".[{','.join(EXTRAS)}]", environment=environment)
    (folder / "smoke").mkdir()
    call(python, "-I", "tools/smoke.py", folder / "smoke", environment=environment)
    call(*install, f".[{','.join(EXTRAS)}]", *tools, environment=environment)
    tests = sorted({path for paths in TESTS.values() for path in paths})
    options = ("-q", "-p", "no:cacheprovider", "--numprocesses=auto", "--maxprocesses=4")
    call(python, "-m", "pytest", *options, "--dist=loadfile", *tests, environment=environment)


def call(*command: str | Path, environment: Mapping[str, str]) -> None:
    """Run a command from the root of the source tree; raises if it fails."""
    print("$", *command, flush=True)
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main())
