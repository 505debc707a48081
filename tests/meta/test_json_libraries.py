"""Who reads and writes JSON: msgspec where a type is known, orjson where none is."""

import ast
import re
from collections.abc import Callable, Iterator

import pytest
from tools.source_modules import source_modules

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


def test_msgspec_decodes_json_only_with_a_type() -> None:
    found = [
        f"{module.path}:{line}"
        for module in source_modules()
        for line in untyped_decodes(module.tree)
    ]
    assert found == [], "these lines decode JSON without a type: use orjson"


def names_that(is_found: Callable[[str], bool]) -> list[str]:
    return [
        f"{module.path}:{line}: {name}"
        for module in source_modules()
        for line, name in module.imported_names()
        if is_found(name)
    ]


def test_msgspec_is_called_by_its_full_name() -> None:
    # Otherwise the test above would not see a decoder that was imported under another name.
    is_part = re.compile(r"msgspec\..*(json|\*$)").match
    assert is_part("msgspec.json.decode")
    assert names_that(lambda name: is_part(name) is not None) == []


def test_standard_library_json_is_not_used() -> None:
    # Starlette's own JSON answer is written by the standard library, too.
    used = names_that(lambda name: name.split(".")[0] == "json" or name.endswith(".JSONResponse"))
    assert used == []


def test_json_for_people_is_laid_out_in_one_place() -> None:
    users = [module.path for module in source_modules() if "msgspec.json.format" in module.text]
    assert users == [], "use readable_json"


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
