"""A disk that is full at a chosen moment."""

import errno
from pathlib import Path

from esper.nissa.storage.files import FileSystem


class FailingDisk(FileSystem):
    """Raises at the n-th call that changes something; 0 for never."""

    def __init__(self, fail_at: int = 0) -> None:
        self.fail_at = fail_at
        self.num_calls = 0

    def _count(self) -> None:
        self.num_calls += 1
        if self.num_calls == self.fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(self, descriptor: int, data: bytes) -> None:
        self._count()
        super().write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self._count()
        super().fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._count()
        super().link(source, target)

    def fsync_directory(self, path: Path) -> None:
        self._count()
        super().fsync_directory(path)


class DiskWithoutLinks(FileSystem):
    """A disk on which every file has one name, as on a memory card."""

    def link(self, source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")
