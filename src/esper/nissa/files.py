"""Files: the one seam through which the bus writes, so that tests can make a disk fail."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["FileSystem", "link_atomically", "write_atomically"]

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""How file systems say that they know no second names, or no further one."""


class FileSystem:
    """The operating system's files, by descriptor; whatever goes wrong is an `OSError`."""

    def make_directory(self, path: Path) -> None:
        """Create a directory that must not exist yet, and its parents."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()

    def open(self, path: Path, flags: int) -> int:
        """Open a file and return its descriptor."""
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def lock(self, descriptor: int) -> None:
        """Claim a file for this descriptor alone, or fail at once."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, descriptor: int, data: bytes) -> None:
        """Write all of it."""
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def fsync(self, descriptor: int) -> None:
        """Force what was written to the disk."""
        os.fsync(descriptor)

    def truncate(self, descriptor: int, num_bytes: int) -> None:
        """Cut a file to a length."""
        os.ftruncate(descriptor, num_bytes)

    def num_links(self, descriptor: int) -> int:
        """Count the names of an open file; 0 means that it was removed under us."""
        return os.fstat(descriptor).st_nlink

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Put a file in another's place, in one step."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""
        target.hardlink_to(source)

    def remove(self, path: Path) -> None:
        """Take a file's name away, if it is there."""
        path.unlink(missing_ok=True)

    def fsync_directory(self, path: Path) -> None:
        """Force a directory's names to the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomically(files: FileSystem, path: Path, data: bytes) -> None:
    """Write a file so that after a crash there is the old one or the new one, whole."""
    with _put_in_place(files, path) as temporary:
        descriptor = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            files.write(descriptor, data)
            files.fsync(descriptor)
        finally:
            files.close(descriptor)


def link_atomically(files: FileSystem, source: Path, path: Path) -> bool:
    """Give a file that is never written again a second name; tell whether the disk can do that."""
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
    """Let a file be made under a temporary name, and give it its own in one step."""
    temporary = path.with_name(path.name + ".tmp")
    # What a crash has left there may be another file's second name: it must not be written to.
    files.remove(temporary)
    try:
        yield temporary
        files.rename(temporary, path)
    except BaseException:
        # A disk that fails twice keeps the rest; the next writer of this file removes it.
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    files.fsync_directory(path.parent)
