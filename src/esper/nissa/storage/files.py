"""Files: the file operations used for writing, in one place so that tests can inject failures."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from esper.leyline.errors import ForeignFileError, UnreadableFileError
from esper.leyline.platforms import copy_above, lock_file

__all__ = [
    "FileSystem",
    "link_atomically",
    "make_directories",
    "read_limited",
    "require_own_directory",
    "require_own_file",
    "write_atomically",
]

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of file systems without hard links, or at their limit of links per file."""
_FOREIGN_KINDS: Final = {errno.ELOOP: "a symbolic link", errno.ENXIO: "a pipe or a socket"}
"""What the errors of opening a file without following links mean."""


class FileSystem:
    """File operations of the operating system, by descriptor; failures raise `OSError`."""

    def make_directory(self, path: Path) -> None:
        """Create a directory that must not exist yet."""
        path.mkdir()

    def open(self, path: Path, flags: int) -> int:
        """Open a regular file with one name for writing and return its descriptor.

        Links are not followed: what is written to a run's directory must not leave it.
        """
        try:
            # Opening a pipe without a reader must not block.
            descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        except OSError as error:
            kind = _FOREIGN_KINDS.get(error.errno or 0)
            if kind is None:
                raise
            raise ForeignFileError(path, kind) from None
        try:
            _require_regular(path, os.fstat(descriptor))
        except ForeignFileError:
            os.close(descriptor)
            raise
        return _above_standard_streams(descriptor)

    def status(self, descriptor: int) -> os.stat_result:
        """Return size and identity of an open file."""
        return os.fstat(descriptor)

    def status_at(self, path: Path) -> os.stat_result | None:
        """Return size and identity of what has this name now, not following a link; or None."""
        try:
            return os.lstat(path)
        except FileNotFoundError:
            return None

    def lock(self, descriptor: int) -> None:
        """Acquire an exclusive lock on a file, or raise `BlockingIOError` at once."""
        lock_file(descriptor)

    def write(self, descriptor: int, data: bytes) -> None:
        """Write all bytes, repeating after short writes."""
        view = memoryview(data)
        while view:
            # A write may be short when the disk is nearly full or a signal arrives.
            view = view[os.write(descriptor, view) :]

    def fsync(self, descriptor: int) -> None:
        """Flush a file to disk."""
        os.fsync(descriptor)

    def truncate(self, descriptor: int, num_bytes: int) -> None:
        """Truncate a file to a length."""
        os.ftruncate(descriptor, num_bytes)

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


def _above_standard_streams(descriptor: int) -> int:
    """Return a descriptor above 2, where messages of C libraries go whatever is open there."""
    if descriptor > 2:
        return descriptor
    moved = copy_above(descriptor, 3)
    os.close(descriptor)
    return moved


def _require_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise ForeignFileError(path, "a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise ForeignFileError(path, "not a regular file")
    if status.st_nlink != 1:
        raise ForeignFileError(path, "a hard link")


def require_own_file(files: FileSystem, path: Path) -> None:
    """Raise ForeignFileError if a run could not write to what has this name, if anything has."""
    status = files.status_at(path)
    if status is not None:
        _require_regular(path, status)


def require_own_directory(path: Path) -> None:
    """Raise ForeignFileError if a directory that a run writes to is a link."""
    if path.is_symlink():
        raise ForeignFileError(path, "a symbolic link")


def make_directories(files: FileSystem, path: Path) -> None:
    """Create a directory that must not exist yet, and its parents, so that a crash keeps them."""
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for directory in reversed(missing):
        try:
            files.make_directory(directory)
        except FileExistsError:
            if directory == path:
                raise
            continue  # made by another run in the meantime
        files.fsync_directory(directory.parent)


def read_limited(path: Path, max_bytes: int, what: str) -> bytes:
    """Read a whole file; raise UnreadableFileError if it cannot be read or is too large.

    Args:
        path: the file; of a pipe or device, the first bytes are read.
        max_bytes: the largest size that is accepted.
        what: the expected kind of file, for the message.
    """
    try:
        with path.open("rb") as file:
            # One byte more than allowed shows that there is more, without reading it.
            data = file.read(max_bytes + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableFileError(path, f"cannot read the {what}: {reason}") from None
    if len(data) > max_bytes:
        raise UnreadableFileError(path, f"not a {what}: over {max_bytes} bytes")
    return data


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
