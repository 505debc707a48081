"""Functions and modules stay small enough to read."""

import ast

from tools.measure_house import MAX_FUNCTION_LINES, MAX_MODULE_LINES, function_sizes
from tools.source_modules import source_modules


def is_decorator(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    last = function.body[-1]
    inner = {node.name for node in function.body if isinstance(node, ast.FunctionDef)}
    return (
        isinstance(last, ast.Return)
        and isinstance(last.value, ast.Name)
        and (last.value.id in inner)
    )


def test_functions_are_at_most_sixty_lines() -> None:
    sizes = function_sizes(source_modules())
    assert {place: size for place, size in sizes.items() if size > MAX_FUNCTION_LINES} == {}


def test_modules_are_at_most_eight_hundred_lines() -> None:
    sizes = {module.name: module.num_lines for module in source_modules()}
    assert {name: size for name, size in sizes.items() if size > MAX_MODULE_LINES} == {}


def test_no_function_is_nested_but_a_decorators_wrapper() -> None:
    nested = [
        f"{module.path}: {function.name} > {inner.name}"
        for module in source_modules()
        for function in module.functions()
        for inner in ast.walk(function)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner is not function
        if not is_decorator(function)
    ]
    assert nested == []


def test_lambdas_stand_only_behind_key_and_default_factory() -> None:
    stray = []
    for module in source_modules():
        allowed = {
            node.value
            for node in module.nodes
            if isinstance(node, ast.keyword) and node.arg in {"key", "default_factory"}
        }
        stray += [
            f"{module.path}:{node.lineno}"
            for node in module.nodes
            if isinstance(node, ast.Lambda) and node not in allowed
        ]
    assert stray == []


def test_every_module_says_what_it_owns() -> None:
    silent = [module.path for module in source_modules() if not ast.get_docstring(module.tree)]
    assert silent == []
