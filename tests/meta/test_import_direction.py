"""Which package may import which."""

import ast

import pytest
from tools.source_modules import SourceModule, source_modules

TOP_LEVEL = {"version"}
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
    "exporting": {"training"},
}
"""Within simic: training, evaluation and exporting depend on the rest, never the other way."""

NISSA_ALLOWED = {
    "storage": set(),
    "bus": {"storage"},
    "live": {"bus", "storage"},
    "reading": {"storage"},
    "analysis": {"reading", "storage"},
    "sinks": {"bus", "reading", "storage"},
}
"""Within nissa: what reads logs never loads the hub that writes them."""

KARN_ALLOWED = {
    "view": set(),
    "console": {"view"},
    "mcp": {"view"},
    "web": {"view"},
    "report": {"view", "web"},
}
"""Within karn: every way to show a run depends on the view, never the other way."""

KARN_IMPORTERS = {"esper.simic.training.run_monitors", "esper.simic.training.run_result"}
"""Build what shows a run, and read its verdict; they alone import karn, each when asked to."""


def imported_parts(module: SourceModule) -> list[tuple[int, list[str]]]:
    names = module.imported_names()
    return [(line, name.split(".")[1:]) for line, name in names if name.startswith("esper.")]


def allowed_packages(module: SourceModule) -> set[str]:
    extra = {"karn"} if module.name in KARN_IMPORTERS else set()
    return ALLOWED[module.package] | {module.package} | TOP_LEVEL | extra


def test_packages_import_only_what_the_table_allows() -> None:
    offenders = [
        f"{module.path}:{line}: {module.package} -> {parts[0]}"
        for module in source_modules()
        if module.package != ""  # the top of the package has no row of its own
        for line, parts in imported_parts(module)
        if parts[0] not in allowed_packages(module)
    ]
    assert offenders == []


@pytest.mark.parametrize(
    ("package", "table"),
    [("simic", SIMIC_ALLOWED), ("nissa", NISSA_ALLOWED), ("karn", KARN_ALLOWED)],
)
def test_parts_of_a_package_import_one_way(package: str, table: dict[str, set[str]]) -> None:
    offenders = []
    for module in source_modules():
        parts = module.name.split(".")
        if parts[1:2] != [package] or len(parts) < 4:
            continue
        allowed = table[parts[2]] | {parts[2]}
        offenders += [
            f"{module.path}:{line}: {package}.{parts[2]} -> {target[1]}"
            for line, target in imported_parts(module)
            if target[0] == package
            # The modules directly in simic are shared by its parts.
            if target[1] not in allowed and (package != "simic" or target[1] in table)
        ]
    assert offenders == []


def test_light_packages_never_name_torch() -> None:
    offenders = [
        f"{module.path}:{line}: {name}"
        for module in source_modules()
        if module.package in LIGHT
        for line, name in module.imported_names()
        if name.split(".")[0] == "torch"
    ]
    assert offenders == []


def has_reason(lines: list[str], line: int) -> bool:
    here, above = lines[line - 1], lines[line - 2]
    return "#" in here or above.lstrip().startswith("#") or "import " in above


def test_imports_inside_functions_say_why() -> None:
    offenders = [
        f"{module.path}:{node.lineno}"
        for module in source_modules()
        for lines in [module.text.splitlines()]
        for function in module.functions()
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom) and not has_reason(lines, node.lineno)
    ]
    assert offenders == []
