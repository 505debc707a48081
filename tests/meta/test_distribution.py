"""The distribution has one name, one version and one list of tools, wherever they are written."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from tools.source_modules import ROOT, source_modules

import esper
from esper.leyline.extras import EXTRAS

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
DEVELOPMENT_EXTRAS = ("dev", "docs", "fuzz")
INSTALL_COMMAND = re.compile(r"\b(?:pip|pipx|uv) (?:install|add)\s+(?:-\S+\s+)*['\"]?([^\s'\"`;]+)")
EXTRA = re.compile(r"(?<![\w.-])((?:esper[\w.-]*|\{__distribution__\})\[\w+\])")


def published_texts() -> list[Path]:
    """Return every file from which a user may take an install command."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("docs/**/*.md")]
    for folder in ("src", "tools"):
        found += [*ROOT.glob(f"{folder}/**/*.py"), *ROOT.glob(f"{folder}/**/*.js")]
    return found


def named_requirements(text: str) -> list[str]:
    """Return what install commands name, and whatever is written as one of our extras."""
    return [*INSTALL_COMMAND.findall(text), *EXTRA.findall(text)]


def is_ours(named: str) -> bool:
    """Whether a requirement is the source tree or our distribution, with extras that exist."""
    if named.startswith("."):
        return True
    requirement = Requirement(named.replace("{__distribution__}", esper.__distribution__))
    return requirement.name == PROJECT["name"] and requirement.extras.issubset(
        PROJECT["optional-dependencies"]
    )


def test_code_knows_the_name_and_version_of_its_distribution() -> None:
    assert (esper.__distribution__, esper.__version__) == (PROJECT["name"], PROJECT["version"])


def test_the_packages_of_an_extra_are_those_that_it_installs() -> None:
    assert {
        extra: tuple(Requirement(line).name for line in lines)
        for extra, lines in PROJECT["optional-dependencies"].items()
        if extra not in DEVELOPMENT_EXTRAS
    } == EXTRAS


def test_install_commands_and_extras_name_our_distribution() -> None:
    found = [
        (path, named)
        for path in published_texts()
        for named in named_requirements(path.read_text("utf-8"))
    ]
    assert found, "no install hint was found at all"
    foreign = [f"{path.relative_to(ROOT)}: {named}" for path, named in found if not is_ours(named)]
    assert foreign == []


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("pip install 'esper[query]'", False),
        ("pip install --upgrade esper", False),
        ("uv add espers-grow[query]", False),
        ("needs esper[query]", False),
        ("pip install 'esper-grow[nothing]'", False),
        ("pip install 'esper-grow[query]'", True),
        ("pip install '{__distribution__}[query]'", True),
        ("pip install --editable '.[dev]'", True),
    ],
)
def test_search_for_install_commands_sees_foreign_names(text: str, is_own: bool) -> None:
    assert all(map(is_ours, named_requirements(text))) == is_own
    assert named_requirements(text)


def test_uv_installs_the_development_tools_by_default() -> None:
    # uv installs the group named dev unless another is chosen; the extra is the list's one home.
    assert PYPROJECT["dependency-groups"]["dev"] == [f"{PROJECT['name']}[dev]"]


def test_uvicorn_is_bounded_above_by_the_next_release_that_may_change_its_internals() -> None:
    # Its protocols have no public hook for a request timeout, nor for where a ping's payload is
    # drawn from; before 1.0 any minor release may change them. Raise the bound with the pin.
    internals = [
        (module.name, name)
        for module in source_modules()
        for _, name in module.imported_names()
        if name.startswith("uvicorn.protocols.")
    ]
    assert internals, "no internals are used any more: remove the upper bound and this test"
    requirement = next(
        found for found in map(Requirement, PROJECT["dependencies"]) if found.name == "uvicorn"
    )
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = Version(next(pin for pin in pins if pin.startswith("uvicorn==")).partition("==")[2])
    assert pinned in requirement.specifier
    assert f"{pinned.major}.{pinned.minor + 1}" not in requirement.specifier
