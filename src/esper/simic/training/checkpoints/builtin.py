"""Pretrained policies that ship with Esper."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from esper.leyline.errors import UnknownNameError
from esper.nissa.reading.run_lookup import RUNS_DIRECTORY
from esper.simic.training.checkpoints.resuming import find_checkpoint

__all__ = ["BUILTIN_PREFIX", "builtin_policies", "checkpoint_at"]

BUILTIN_PREFIX: Final = "builtin:"
_SUFFIX: Final = ".pt"


def builtin_policies() -> tuple[str, ...]:
    """Return the names of the policies that ship with Esper."""
    return tuple(sorted(path.stem for path in _directory().glob(f"*{_SUFFIX}")))


def checkpoint_at(text: str, telemetry_dir: Path = RUNS_DIRECTORY) -> Path:
    """Return the checkpoint that a path, a run or `builtin:NAME` means.

    Args:
        text: what the user gave.
        telemetry_dir: where runs are looked up.
    """
    if not text.startswith(BUILTIN_PREFIX):
        return find_checkpoint(text, telemetry_dir)
    name = text.removeprefix(BUILTIN_PREFIX)
    known = builtin_policies()
    if name not in known:
        raise UnknownNameError("policy", text, (BUILTIN_PREFIX + each for each in known))
    return _directory() / f"{name}{_SUFFIX}"


def _directory() -> Path:
    # Checkpoints are opened by path; running Esper from a zip archive is not supported.
    return Path(str(files("esper.simic").joinpath("assets")))
