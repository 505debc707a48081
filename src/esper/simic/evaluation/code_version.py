"""A digest of the code that determines the result of a run."""

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

import torch

__all__ = ["code_version", "digest_of_package"]

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
