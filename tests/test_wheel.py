"""The wheel, installed into an environment with its declared dependencies and nothing else."""

import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
CONSUMER = """\
from esper.leyline.stages import Stage

wrong: str = Stage.DORMANT
"""
CONSUMER_CONFIG = "[mypy]\nstrict = True\n[mypy-torch.*]\nfollow_imports = skip\n"
"""torch takes mypy half a minute and says nothing about our own types."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, used from outside the source tree."""

    prefix: Path
    wheel: Path

    @property
    def site_packages(self) -> Path:
        (found,) = self.prefix.glob("lib/python*/site-packages")
        return found

    def run(self, program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.prefix / "bin" / program, *arguments],
            cwd=cwd,
            env={"PATH": f"{self.prefix / 'bin'}:/usr/bin:/bin", "HOME": str(cwd)},
            capture_output=True,
            text=True,
            timeout=100,
        )

    def pip(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run pip on the environment: giving it a pip of its own takes longer than all the rest."""
        pip = [sys.executable, "-m", "pip", "--isolated", "--python", str(self.prefix)]
        return subprocess.run(
            [*pip, *arguments], cwd=cwd, capture_output=True, text=True, timeout=100
        )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = (folder / "dist").iterdir()
    venv.create(folder / "prefix", symlinks=True)
    created = Environment(folder / "prefix", wheel)
    result = created.pip("install", "--no-index", "--no-deps", str(wheel), cwd=folder)
    assert result.returncode == 0, result.stderr
    (metadata,) = created.site_packages.glob("esper*.dist-info")
    for dependency in dependencies_of(PathDistribution(metadata), set()):
        link(dependency, created.site_packages)
    return created


def dependencies_of(installed: Distribution, seen: set[str]) -> Iterator[Distribution]:
    """Yield what a distribution requires, and what that requires, without extras."""
    for requirement in map(Requirement, installed.requires or ()):
        name = canonicalize_name(requirement.name)
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_needed and name not in seen:
            seen.add(name)
            found = distribution(name)
            yield found
            yield from dependencies_of(found, seen)


def link(installed: Distribution, site_packages: Path) -> None:
    """Lend a distribution of this environment to another: copying torch would take minutes."""
    names = {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}
    for name in names:
        if not (site_packages / name).exists():
            (site_packages / name).symlink_to(str(installed.locate_file(name)))


def test_wheel_has_every_file_of_the_package_and_no_other(environment: Environment) -> None:
    with zipfile.ZipFile(environment.wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        described = archive.read(metadata).decode()
    paths = {path for path in (SOURCE / "esper").rglob("*") if path.is_file()}
    ours = {str(path.relative_to(SOURCE)) for path in paths if "__pycache__" not in path.parts}
    assert packed == ours
    needed = {
        "esper/py.typed",
        "esper/karn/web/assets/index.html",
        "esper/runtime/assets/digits-images-idx3-ubyte.gz",
        "esper/simic/assets/digits_growth.pt",
    }
    assert needed <= packed
    assert "\nLicense-Expression: MIT\n" in described


def test_installed_wheel_trains_outside_the_source_tree(
    environment: Environment, tmp_path: Path
) -> None:
    arguments = ("wait", "--rounds", "1", "--envs", "1", "--episode-length", "2")

    trained = environment.run("esper-train", *arguments, cwd=tmp_path)
    where = environment.run("python", "-c", "import esper; print(esper.__file__)", cwd=tmp_path)

    assert trained.returncode == 0, trained.stderr
    assert "completed" in trained.stdout
    assert Path(where.stdout.strip()).is_relative_to(environment.site_packages)
    (run_dir,) = (tmp_path / "runs").iterdir()
    validated = environment.run("esper-telemetry", "validate", str(run_dir), cwd=tmp_path)
    assert validated.returncode == 0, validated.stdout


def test_hint_for_the_query_extra_is_a_command_that_pip_resolves_to_this_wheel(
    environment: Environment, tmp_path: Path
) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text("")

    refused = environment.run("esper-telemetry", "query", str(log), "select 1", cwd=tmp_path)

    assert refused.returncode == 2
    hint = re.search(r"pip install '([^']+)'", refused.stderr)
    assert hint is not None, refused.stderr
    # Without an index pip can only take what is installed: ours is found, and duckdb is missing.
    asked = environment.pip("install", "--dry-run", "--no-index", hint[1], cwd=tmp_path)
    assert f"already satisfied: {hint[1]}" in asked.stdout
    assert "No matching distribution found for duckdb" in asked.stderr


def test_type_checker_sees_the_types_of_the_installed_wheel(
    environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / "consumer.py").write_text(CONSUMER)
    (tmp_path / "mypy.ini").write_text(CONSUMER_CONFIG)
    python = str(environment.prefix / "bin" / "python")

    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", python, "consumer.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert 'expression has type "Stage", variable has type "str"' in checked.stdout
    assert "Found 1 error" in checked.stdout
