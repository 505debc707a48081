"""Tasks that are named by where they are written: `package.module:NAME`, `path/to/file.py:NAME`."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from esper.leyline.errors import EsperError, UsageError, nearest_name

__all__ = ["object_at"]

_SUFFIX = ".py"


def object_at(reference: str) -> object:
    """Import a file or module, and return what it calls NAME.

    Relative paths and modules start at the current directory. What the file imports may stand
    beside it.

    Raises:
        UsageError: if there is no such file, module or name, or the code fails.
    """
    source, _, attribute = reference.rpartition(":")
    try:
        module = _file_module(Path(source)) if source.endswith(_SUFFIX) else _module(source)
    except EsperError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise UsageError(f"task {reference}: importing it failed: {error!r}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        nearest = nearest_name(attribute, [name for name in vars(module) if name[:1] != "_"])
        hint = "" if nearest is None else f"; did you mean {nearest}?"
        raise UsageError(f"task {reference}: {source} has no {attribute}{hint}") from None


def _module(name: str) -> ModuleType:
    _find_beside(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{name}.".startswith(f"{missing}."):  # one that its code imports
            raise
        raise UsageError(
            f"task {name}: there is no module {missing}; a file is named as path/to/file.py:NAME"
        ) from None


def _file_module(path: Path) -> ModuleType:
    """Import a file once, under its own name: factories of hosts are found by `file:function`."""
    path = path.absolute()
    if not path.is_file():
        raise UsageError(f"task {path.name}: there is no file {path}")
    known = sys.modules.get(path.stem)
    if known is not None:
        if getattr(known, "__file__", None) == str(path):
            return known
        raise UsageError(f"task {path.name}: another module is called {path.stem}; rename the file")
    _find_beside(path.parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a file that ends with .py has a loader"
    assert spec.loader is not None, "a file that ends with .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]  # half of a module
        raise
    return module


def _find_beside(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
