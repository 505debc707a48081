"""Which package may import which."""

import ast

import pytest
from tools.source_modules import SourceModule, source_modules

TOP_LEVEL = {"version", "__distribution__"}
"""What the top of the package itself defines; every package may import it."""

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
    "probes": set(),
    "training": {"agent", "rewards", "attribution", "control", "telemetry", "probes"},
    "evaluation": {"agent", "rewards", "attribution", "control", "telemetry", "training"},
}
"""Within simic: training and evaluation depend on the rest, never the other way."""

NISSA_ALLOWED = {
    "storage": set(),
    "bus": {"storage"},
    "live": {"bus", "storage"},
    "reading": {"storage"},
    "analysis": {"reading", "storage"},
}
"""Within nissa: what reads logs never loads the hub that writes them."""

KARN_ALLOWED = {
    "view": set(),
    "console": {"view"},
    "web": {"view"},
    "report": {"view", "web"},
}
"""Within karn: every way to show a run depends on the view, never the other way."""

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
    allowed = ALLOWED[module.package] | {module.package} | TOP_LEVEL
    if module.name == COMPOSITION_ROOT:
        allowed = allowed | {"karn"}
    for line, parts in imported_parts(module):
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
@pytest.mark.parametrize(("package", "table"), [("nissa", NISSA_ALLOWED), ("karn", KARN_ALLOWED)])
def test_parts_of_a_light_package_import_one_way(
    module: SourceModule, package: str, table: dict[str, set[str]]
) -> None:
    parts = module.name.split(".")
    if parts[1:2] != [package] or len(parts) < 4:
        return
    allowed = table[parts[2]] | {parts[2]}
    for line, target in imported_parts(module):
        if target[0] == package:
            assert target[1] in allowed, f"{module.path}:{line}: {parts[2]} -> {target[1]}"


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
