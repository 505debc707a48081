"""What Sphinx makes of the texts below attributes: `make site` takes every warning for an error."""

import ast
from collections.abc import Iterator
from itertools import pairwise

from tools.source_modules import source_modules


def attribute_docs(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the texts that stand below the attributes of classes."""
    for parent in ast.walk(tree):
        if isinstance(parent, ast.ClassDef):
            for before, after in pairwise(parent.body):
                if isinstance(before, ast.AnnAssign | ast.Assign) and isinstance(after, ast.Expr):
                    yield after.value


def test_first_colon_of_an_attributes_text_is_not_within_code() -> None:
    # What comes before it is taken for the attribute's type, and would end in an open backtick.
    found = [
        f"{module.name}:{text.lineno}"
        for module in source_modules()
        for text in attribute_docs(module.tree)
        if ":" in text.value and text.value.partition(":")[0].count("`") % 2
    ]
    assert found == []
