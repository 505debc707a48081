"""Digests of the code that determines the result of a run: Esper's, and that of plug-ins."""

import hashlib
import inspect
from collections.abc import Iterable, Iterator
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Final

import torch

__all__ = ["code_version", "digest_of_package", "digest_with_plugins"]

DECISIVE: Final = ("kasmina", "leyline", "runtime", "simic", "tamiyo", "tolaria")
"""Packages that results depend on; telemetry, views and commands only show them."""
NUM_DIGITS: Final = 8


@cache
def code_version() -> str:
    """Return the digest of the installed package, be it a clone or a wheel, and of torch."""
    # Files are read by path; running Esper from a zip archive is not supported.
    return digest_of_package(Path(str(files("esper"))), str(torch.__version__))


def digest_of_package(root: Path, torch_version: str) -> str:
    """Return a digest of the sources and data of a package that results depend on."""
    digest = hashlib.sha256(torch_version.encode())
    for package in DECISIVE:
        for path in sorted((root / package).rglob("*")):
            # Policies that ship with the package are distinguished by their own digest.
            if path.suffix in (".py", ".gz"):
                name = path.relative_to(root).as_posix()
                digest.update(f"{name}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:NUM_DIGITS]


def digest_with_plugins(objects: Iterable[object]) -> str:
    """Return a digest of Esper's code and of the files that define these objects.

    Of an object in a package, all modules beside its own are part of it; what these import from
    elsewhere is not.
    """
    digest = hashlib.sha256(code_version().encode())
    for path in sorted({path for item in objects for path in _sources_of(item)}):
        digest.update(f"{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources_of(item: object) -> Iterator[Path]:
    while isinstance(item, partial):
        item = item.func
    module = inspect.getmodule(item)
    source = None if module is None else getattr(module, "__file__", None)
    if module is None or source is None or module.__name__.partition(".")[0] == "esper":
        return
    path = Path(source)
    is_in_package = bool(module.__package__)
    yield from path.parent.glob("*.py") if is_in_package else (path,)
