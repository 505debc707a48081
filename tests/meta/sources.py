"""The package's own source, parsed once for the tests that hold the rules of the house."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOT = ROOT / "src" / "esper"


@dataclass(frozen=True)
class SourceModule:
    """One parsed file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """Return the first name below `esper`, or '' for the top itself."""
        parts = self.path.relative_to(SOURCE_ROOT).parts
        return parts[0] if len(parts) > 1 else ""

    @property
    def name(self) -> str:
        """Return the dotted name."""
        parts = self.path.relative_to(SOURCE_ROOT.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def imported_names(self) -> Iterator[tuple[int, str]]:
        """Yield line and dotted name of everything imported, at any depth."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}:{node.lineno}: relative import"
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield every function, at any depth."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


@cache
def source_modules() -> tuple[SourceModule, ...]:
    """Return every module of the package."""
    return tuple(
        SourceModule(path, text, ast.parse(text))
        for path in sorted(SOURCE_ROOT.rglob("*.py"))
        for text in [path.read_text(encoding="utf-8")]
    )
