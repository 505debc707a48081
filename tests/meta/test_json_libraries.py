"""Who reads and writes JSON: msgspec where a type is known, orjson where none is."""

import ast
import re
from collections.abc import Iterator

import pytest
from tools.source_modules import SourceModule, source_modules

ORJSON_USERS = {
    "esper.karn.web.page": "the page's import map",
    "esper.leyline.untyped_json": "foreign lines, configuration files, JSON for people, SQL rows",
    "esper.nissa.reading.foreign": "the form in which foreign lines are compared",
    "esper.nissa.live.app": "HTTP answers",
    "esper.scripts.telemetry": "the event schema",
}
"""Modules that handle JSON without a type, and what it is."""

OPEN_TYPES = {"Any", "object", "dict", "list"}
"""Annotations that leave the type open; a dict or a list of something known does not."""

modules = pytest.mark.parametrize("module", source_modules(), ids=lambda module: module.name)


def untyped_decodes(tree: ast.AST) -> Iterator[int]:
    """Yield the lines on which msgspec decodes JSON without a type.

    A name that is passed on instead of called counts too: its arguments are not visible.
    """
    called = {node.func: node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    annotations = {node.value for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    for node in ast.walk(tree):
        name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if name not in ("msgspec.json.decode", "msgspec.json.Decoder") or node in annotations:
            continue
        call = called.get(node)
        position = 0 if name.endswith("Decoder") else 1
        if call is None or not _has_type(call, position):
            yield node.lineno


def _has_type(call: ast.Call, position: int) -> bool:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
    given += call.args[position : position + 1]
    words = set(re.split(r"\W+", ast.unparse(given[0]))) if given else OPEN_TYPES
    is_open = words <= OPEN_TYPES or not words.isdisjoint({"Any", "object"})
    return not is_open


@pytest.mark.parametrize(
    ("code", "is_untyped"),
    [
        ("msgspec.json.decode(line)", True),
        ("msgspec.json.decode(line, type=object)", True),
        ("msgspec.json.decode(line, type=dict[str, Any])", True),
        ("msgspec.json.decode(line, type=dict)", True),
        ("msgspec.json.decode(line, type=Head)", False),
        ("msgspec.json.decode(line, type=list[Head])", False),
        ("msgspec.json.Decoder()", True),
        ("msgspec.json.Decoder(strict=False)", True),
        ("msgspec.json.Decoder(Head)", False),
        ("decoder: msgspec.json.Decoder[Head]", False),
        ("make = msgspec.json.Decoder", True),
        ("read = msgspec.json.decode", True),
        ("msgspec.json.encode(head)", False),
    ],
)
def test_untyped_decodes_are_recognised(code: str, is_untyped: bool) -> None:
    assert list(untyped_decodes(ast.parse(code))) == [1] * is_untyped


@modules
def test_msgspec_decodes_json_only_with_a_type(module: SourceModule) -> None:
    lines = list(untyped_decodes(module.tree))
    assert lines == [], f"{module.path}: lines {lines} decode JSON without a type: use orjson"


@modules
def test_msgspec_is_called_by_its_full_name(module: SourceModule) -> None:
    # Otherwise the test above would not see a decoder that was imported under another name.
    names = [name for _, name in module.imported_names() if name.startswith("msgspec.")]
    assert [name for name in names if "json" in name or name.endswith("*")] == []


@modules
def test_standard_library_json_is_not_used(module: SourceModule) -> None:
    names = [name for _, name in module.imported_names() if name.split(".")[0] == "json"]
    # Starlette's own JSON answer is written by the standard library, too.
    names += [name for _, name in module.imported_names() if name.endswith(".JSONResponse")]
    assert names == [], f"{module.path} imports {names}"


@modules
def test_json_for_people_is_laid_out_in_one_place(module: SourceModule) -> None:
    assert "msgspec.json.format" not in module.text, f"{module.path}: use readable_json"


def test_orjson_is_used_exactly_where_json_has_no_type() -> None:
    users = {
        module.name
        for module in source_modules()
        for _, name in module.imported_names()
        if name.split(".")[0] == "orjson"
    }
    assert users == set(ORJSON_USERS)


@pytest.mark.parametrize("package", ["torch", "anyio", "msgspec", "orjson"])
def test_packages_of_the_design_are_imported(package: str) -> None:
    imported = {name for module in source_modules() for _, name in module.imported_names()}
    assert package in {name.split(".")[0] for name in imported}
