"""Functions and modules stay small enough to read."""

import ast

import pytest
from tests.meta.sources import SourceModule, source_modules

MAX_FUNCTION_LINES = 60
MAX_MODULE_LINES = 800

modules = pytest.mark.parametrize("module", source_modules(), ids=lambda module: module.name)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


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
    long = [
        f"{module.path}:{function.lineno} {function.name} has {body_lines(function)} lines"
        for function in module.functions()
        if body_lines(function) > MAX_FUNCTION_LINES
    ]
    assert long == []


@modules
def test_modules_are_at_most_eight_hundred_lines(module: SourceModule) -> None:
    assert len(module.text.splitlines()) <= MAX_MODULE_LINES


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
