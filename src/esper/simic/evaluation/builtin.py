"""Policies that ship with Esper: trained, so that they know something."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from esper.leyline.errors import UnknownNameError

__all__ = ["BUILTIN_PREFIX", "builtin_policies", "checkpoint_at"]

BUILTIN_PREFIX: Final = "builtin:"
_SUFFIX: Final = ".pt"


def builtin_policies() -> tuple[str, ...]:
    """Return the names of the policies that ship with Esper."""
    return tuple(sorted(path.stem for path in _directory().glob(f"*{_SUFFIX}")))


def checkpoint_at(text: str) -> Path:
    """Return the checkpoint that a path or `builtin:NAME` names."""
    if not text.startswith(BUILTIN_PREFIX):
        return Path(text)
    name = text.removeprefix(BUILTIN_PREFIX)
    known = builtin_policies()
    if name not in known:
        raise UnknownNameError("policy", text, (BUILTIN_PREFIX + each for each in known))
    return _directory() / f"{name}{_SUFFIX}"


def _directory() -> Path:
    # Checkpoints are opened by path, and Esper is never run from an archive.
    return Path(str(files("esper.simic").joinpath("assets")))
