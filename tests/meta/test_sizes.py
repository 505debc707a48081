"""Functions and modules stay small enough to read."""

import ast

import pytest
from tools.measure_house import MAX_FUNCTION_LINES, MAX_MODULE_LINES, function_sizes
from tools.source_modules import SourceModule, source_modules

modules = pytest.mark.parametrize("module", source_modules(), ids=lambda module: module.name)


def is_decorator(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    last = function.body[-1]
    inner = {node.name for node in function.body if isinstance(node, ast.FunctionDef)}
    return (
        isinstance(last, ast.Return)
        and isinstance(last.value, ast.Name)
        and (last.value.id in inner)
    )


@modules
def test_functions_are_at_most_sixty_lines(module: SourceModule) -> None:
    sizes = function_sizes([module])
    assert {place: size for place, size in sizes.items() if size > MAX_FUNCTION_LINES} == {}


@modules
def test_modules_are_at_most_eight_hundred_lines(module: SourceModule) -> None:
    assert module.num_lines <= MAX_MODULE_LINES


@modules
def test_no_function_is_nested_but_a_decorators_wrapper(module: SourceModule) -> None:
    for function in module.functions():
        nested = [
            inner.name
            for inner in ast.walk(function)
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner is not function
        ]
        assert not nested or is_decorator(function), f"{module.path}: {function.name} > {nested}"


@modules
def test_lambdas_stand_only_behind_key_and_default_factory(module: SourceModule) -> None:
    allowed = {
        keyword.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.keyword)
        for keyword in [node]
        if keyword.arg in {"key", "default_factory"}
    }
    stray = [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Lambda) and node not in allowed
    ]
    assert stray == [], f"{module.path}: lambdas at lines {stray}"


@modules
def test_every_module_says_what_it_owns(module: SourceModule) -> None:
    assert ast.get_docstring(module.tree), f"{module.path} has no docstring"
