"""Files: the file operations used for writing, in one place so that tests can inject failures."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["FileSystem", "link_atomically", "write_atomically"]

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of file systems without hard links, or at their limit of links per file."""


class FileSystem:
    """File operations of the operating system, by descriptor; failures raise `OSError`."""

    def make_directory(self, path: Path) -> None:
        """Create a directory that must not exist yet, and its parents."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()

    def open(self, path: Path, flags: int) -> int:
        """Open a file and return its descriptor."""
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def lock(self, descriptor: int) -> None:
        """Acquire an exclusive lock on a file, or raise `BlockingIOError` at once."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, descriptor: int, data: bytes) -> None:
        """Write all bytes, repeating after short writes."""
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def fsync(self, descriptor: int) -> None:
        """Flush a file to disk."""
        os.fsync(descriptor)

    def truncate(self, descriptor: int, num_bytes: int) -> None:
        """Truncate a file to a length."""
        os.ftruncate(descriptor, num_bytes)

    def num_links(self, descriptor: int) -> int:
        """Return the number of hard links of an open file; 0 means that it was removed."""
        return os.fstat(descriptor).st_nlink

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically, replacing the target if it exists."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Create a hard link."""
        target.hardlink_to(source)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        path.unlink(missing_ok=True)

    def fsync_directory(self, path: Path) -> None:
        """Flush a directory's entries to disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomically(files: FileSystem, path: Path, data: bytes) -> None:
    """Write a file so that after a crash either the old or the new content is complete."""
    with _put_in_place(files, path) as temporary:
        descriptor = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            files.write(descriptor, data)
            # Before the rename: otherwise a crash could leave the new name with partial data.
            files.fsync(descriptor)
        finally:
            files.close(descriptor)


def link_atomically(files: FileSystem, source: Path, path: Path) -> bool:
    """Hard-link an immutable file to `path`; return False if hard links are not supported."""
    try:
        with _put_in_place(files, path) as temporary:
            files.link(source, temporary)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


@contextlib.contextmanager
def _put_in_place(files: FileSystem, path: Path) -> Iterator[Path]:
    """Yield a temporary path; after the block, rename it to `path` atomically."""
    temporary = path.with_name(path.name + ".tmp")
    # A leftover from a crash may be a hard link to another file, so it is never written to.
    files.remove(temporary)
    try:
        yield temporary
        files.rename(temporary, path)
    except BaseException:
        # If the removal fails too, the next writer of this file removes the leftover.
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    # The rename itself survives a crash only once the directory is flushed.
    files.fsync_directory(path.parent)
