"""Find calls that make the host wait for a device where the hot path must not.

Usage: python -m tools.lint_device_sync [SOURCE_ROOT]

In the packages of the hot path `.item`, `.cpu`, `.tolist`, `.numpy` and `.synchronize` belong into
functions whose name begins with materialize_, which run after the fence, or into tolaria/fences.py.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parents[1] / "src" / "esper"
HOT_PATHS = ("kasmina", "tolaria", "simic/training", "tamiyo")
FENCES = "tolaria/fences.py"
WAITING = frozenset({"item", "cpu", "tolist", "numpy", "synchronize"})
ALLOWED_PREFIX = "materialize_"


@dataclass(frozen=True)
class Offence:
    """A name in the hot path that makes the host wait."""

    path: Path
    line: int
    attribute: str
    function: str

    def __str__(self) -> str:
        where = f"in {self.function}" if self.function else "outside of any function"
        return (
            f"{self.path}:{self.line}: .{self.attribute} {where}; "
            f"move it into a {ALLOWED_PREFIX}* function that runs after the fence"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Print every offence and return 1 if there is one."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) > 1 or (arguments and not Path(arguments[0]).is_dir()):
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(arguments[0]) if arguments else SOURCE_ROOT
    offences = [offence for path in hot_files(root) for offence in offences_in(path)]
    for offence in offences:
        print(offence)
    return 1 if offences else 0


def hot_files(root: Path) -> list[Path]:
    """Return the files of the hot path, fences aside."""
    files = [path for part in HOT_PATHS for path in sorted((root / part).rglob("*.py"))]
    return [path for path in files if path != root / FENCES]


def offences_in(path: Path) -> Iterator[Offence]:
    """Yield the offences of one file, in the order of its lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    yield from _walk(tree, path, "")


def _walk(node: ast.AST, path: Path, function: str) -> Iterator[Offence]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if not child.name.lstrip("_").startswith(ALLOWED_PREFIX):
                yield from _walk(child, path, child.name)
            continue
        # A reference waits as soon as it is called, as in map(Tensor.item, losses).
        if isinstance(child, ast.Attribute) and child.attr in WAITING and not _is_module(child):
            yield Offence(path, child.lineno, child.attr, function)
        yield from _walk(child, path, function)


def _is_module(node: ast.Attribute) -> bool:
    """Return whether this is torch.cpu or torch.backends.cpu instead of a tensor's method."""
    return ast.unparse(node) in {"torch.cpu", "torch.backends.cpu"}


if __name__ == "__main__":
    sys.exit(main())
