"""Who may import whom."""

import ast

import pytest
from tests.meta.sources import SourceModule, source_modules

LIGHT = {"leyline", "nissa", "karn"}
"""Packages that never import torch."""

ALLOWED = {
    "leyline": set(),
    "kasmina": {"leyline"},
    "tamiyo": {"leyline"},
    "nissa": {"leyline"},
    "tolaria": {"leyline", "kasmina"},
    "runtime": {"leyline", "kasmina"},
    "simic": {"leyline", "kasmina", "tamiyo", "nissa", "tolaria", "runtime"},
    "karn": {"leyline", "nissa"},
    "scripts": {*("leyline", "kasmina", "tamiyo", "nissa", "tolaria", "runtime", "simic", "karn")},
}

SIMIC_ALLOWED = {
    "agent": set(),
    "rewards": set(),
    "attribution": set(),
    "control": set(),
    "telemetry": set(),
    "training": {"agent", "rewards", "attribution", "control", "telemetry"},
    "evaluation": {"agent", "rewards", "attribution", "control", "telemetry", "training"},
}
"""Within simic: training and evaluation depend on the rest, never the other way."""

COMPOSITION_ROOT = "esper.simic.training.run"
"""Puts a run together, the monitor that a user asks for included; it alone imports karn."""

modules = pytest.mark.parametrize("module", source_modules(), ids=lambda module: module.name)


def imported_parts(module: SourceModule) -> list[tuple[int, list[str]]]:
    names = module.imported_names()
    return [(line, name.split(".")[1:]) for line, name in names if name.startswith("esper.")]


@modules
def test_packages_import_only_what_the_table_allows(module: SourceModule) -> None:
    if module.package == "":
        return  # the top of the package has no row of its own
    allowed = ALLOWED[module.package] | {module.package}
    if module.name == COMPOSITION_ROOT:
        allowed = allowed | {"karn"}
    for line, parts in imported_parts(module):
        # `from esper import __version__` names the top itself, which everybody may read.
        if not parts[0].startswith("__"):
            assert parts[0] in allowed, f"{module.path}:{line}: {module.package} -> {parts[0]}"


@modules
def test_simic_training_is_imported_by_nothing_below_it(module: SourceModule) -> None:
    parts = module.name.split(".")
    if parts[1:2] != ["simic"] or len(parts) < 4:
        return
    allowed = SIMIC_ALLOWED[parts[2]] | {parts[2]}
    for line, target in imported_parts(module):
        if target[0] == "simic" and target[1] in SIMIC_ALLOWED:
            assert target[1] in allowed, f"{module.path}:{line}: simic.{parts[2]} -> {target[1]}"


@modules
def test_light_packages_never_name_torch(module: SourceModule) -> None:
    if module.package in LIGHT:
        heavy = [name for _, name in module.imported_names() if name.split(".")[0] == "torch"]
        assert heavy == [], f"{module.path} imports {heavy}"


@modules
def test_imports_inside_functions_say_why(module: SourceModule) -> None:
    lines = module.text.splitlines()
    for function in module.functions():
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                here, above = lines[node.lineno - 1], lines[node.lineno - 2]
                has_reason = "#" in here or above.lstrip().startswith("#") or "import " in above
                assert has_reason, f"{module.path}:{node.lineno}: hidden import without a reason"
