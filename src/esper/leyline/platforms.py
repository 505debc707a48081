"""What Esper needs of the operating system, and modules that only some systems have.

Everything can be imported everywhere, so that documentation, type checkers and `load_grown` work;
commands that read or write runs say in one sentence where they cannot.
"""

import importlib
import os
from types import ModuleType
from typing import Any, Final

from esper.leyline.errors import UsageError

__all__ = ["check_platform", "copy_above", "lock_file", "optional_module", "wait_for_lock"]

_NEEDED: Final = ("pread", "O_NONBLOCK", "setsid")
"""What reading a log that another process writes, and worker processes, cannot do without."""


def optional_module(name: str) -> ModuleType | None:
    """Return a module of the standard library, or None on systems without it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_fcntl: Final[Any] = optional_module("fcntl")


def check_platform() -> None:
    """Raise a UsageError on systems on which runs can be neither read nor written."""
    if _fcntl is None or not all(hasattr(os, name) for name in _NEEDED):
        raise UsageError(
            "this command needs Linux or macOS (file locks and positional reads); on Windows, use "
            "the Windows Subsystem for Linux"
        )


def lock_file(descriptor: int) -> None:
    """Acquire an exclusive lock on a file, or raise `BlockingIOError` at once."""
    check_platform()
    _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)


def wait_for_lock(descriptor: int) -> None:
    """Wait for an exclusive lock on a file."""
    check_platform()
    _fcntl.flock(descriptor, _fcntl.LOCK_EX)


def copy_above(descriptor: int, lowest: int) -> int:
    """Return another descriptor of the same file, `lowest` or above."""
    check_platform()
    copy: int = _fcntl.fcntl(descriptor, _fcntl.F_DUPFD_CLOEXEC, lowest)
    return copy
