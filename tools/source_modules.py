"""The package's own source, parsed once for the measures and the convention tests."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ROOT = ROOT / "src" / "esper"


@dataclass(frozen=True)
class SourceModule:
    """One parsed file."""

    path: Path
    text: str
    tree: ast.Module
    root: Path = SOURCE_ROOT
    """The folder of the top package."""

    @property
    def package(self) -> str:
        """Return the first name below `esper`, or '' for the top itself."""
        parts = self.path.relative_to(self.root).parts
        return parts[0] if len(parts) > 1 else ""

    @property
    def name(self) -> str:
        """Return the dotted name."""
        parts = self.path.relative_to(self.root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def num_lines(self) -> int:
        """Return the number of lines."""
        return len(self.text.splitlines())

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Return every node of the tree; walking it takes longer than most measures."""
        return tuple(ast.walk(self.tree))

    def imported_names(self) -> Iterator[tuple[int, str]]:
        """Yield line and dotted name of everything imported, at any depth."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}:{node.lineno}: relative import"
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield every function, at any depth."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


@cache
def source_modules(root: Path = SOURCE_ROOT) -> tuple[SourceModule, ...]:
    """Return every module of the package in a folder."""
    return tuple(
        SourceModule(path, text, ast.parse(text), root)
        for path in sorted(root.rglob("*.py"))
        for text in [path.read_text(encoding="utf-8")]
    )


def body_statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """Return the statements of a function without its docstring."""
    return function.body[1:] if ast.get_docstring(function) else function.body


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines a function has, signature and docstring excluded."""
    body = body_statements(function)
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
