"""Which logs are being written: the locks that runs hold, as the kernel lists them."""

import os
from pathlib import Path
from typing import Final

__all__ = ["FileKey", "is_locked", "locked_files"]

_LOCKS: Final = Path("/proc/locks")

FileKey = tuple[int, int, int]
"""Major and minor device number, and inode."""


def locked_files() -> frozenset[FileKey] | None:
    """Return the files that some process has locked; None where the kernel does not say.

    Trying the lock instead would make a run fail that starts at that moment.
    """
    try:
        rows = _LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return frozenset(key for row in rows if (key := _key_in(row)) is not None)


def _key_in(row: str) -> FileKey | None:
    """Parse a row such as `1: FLOCK  ADVISORY  WRITE 25233 fe:00:3048496 0 EOF`."""
    fields = row.split()
    if len(fields) < 6 or fields[1] != "FLOCK":
        return None
    try:
        major, minor, inode = fields[5].split(":")
        return int(major, 16), int(minor, 16), int(inode)
    except ValueError:
        return None


def is_locked(path: Path, locked: frozenset[FileKey]) -> bool:
    """Return whether a file is among the locked ones."""
    status = path.stat()
    return (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino) in locked
