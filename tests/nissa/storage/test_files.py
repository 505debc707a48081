"""Writing atomically: at every point of failure the old or the new content is complete."""

import errno
import os
from pathlib import Path

import pytest

from esper.nissa.storage.files import (
    FileSystem,
    link_atomically,
    make_directories,
    write_atomically,
)

OLD, NEW = b"old content", b"new content, which is longer"
WRITE_STEPS = ["remove", "open", "write", "fsync", "close", "rename", "fsync_directory"]


class FailingAt(FileSystem):
    """Fails at the n-th operation, and lists all operations."""

    def __init__(self, fails_at: int | None = None, error: int = errno.EIO) -> None:
        self.calls: list[str] = []
        self._fails_at = fails_at
        self._error = error

    def __getattribute__(self, name: str) -> object:
        found = object.__getattribute__(self, name)
        if name.startswith("_") or not callable(found):
            return found
        self.calls.append(name)
        if len(self.calls) - 1 == self._fails_at:
            raise OSError(self._error, "injected")
        return found


def test_content_is_on_disk_before_its_name_and_the_name_before_the_end(tmp_path: Path) -> None:
    files = FailingAt()
    write_atomically(files, tmp_path / "f", NEW)
    assert files.calls == WRITE_STEPS


@pytest.mark.parametrize("step", range(len(WRITE_STEPS)))
def test_failure_at_any_step_leaves_one_complete_content(tmp_path: Path, step: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(OLD)

    with pytest.raises(OSError, match="injected"):
        write_atomically(FailingAt(step), path, NEW)

    is_renamed = step > WRITE_STEPS.index("rename")
    assert path.read_bytes() == (NEW if is_renamed else OLD)
    assert list(tmp_path.iterdir()) == [path]


def test_leftover_that_links_to_another_file_is_not_written_to(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "f"
    other.write_bytes(OLD)
    (tmp_path / "f.tmp").hardlink_to(other)

    write_atomically(FileSystem(), path, NEW)

    assert (other.read_bytes(), path.read_bytes()) == (OLD, NEW)


def test_link_replaces_the_target_and_shares_its_content(tmp_path: Path) -> None:
    source, path = tmp_path / "source", tmp_path / "f"
    source.write_bytes(NEW)
    path.write_bytes(OLD)

    assert link_atomically(FileSystem(), source, path)
    assert path.samefile(source)


@pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_file_system_without_links_is_reported_and_nothing_changes(
    tmp_path: Path, error: int
) -> None:
    source, path = tmp_path / "source", tmp_path / "f"
    source.write_bytes(NEW)
    path.write_bytes(OLD)

    assert not link_atomically(FailingAt(1, error), source, path)
    assert path.read_bytes() == OLD


def test_other_failures_of_a_link_are_raised(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(NEW)
    with pytest.raises(OSError, match="injected"):
        link_atomically(FailingAt(1, errno.ENOSPC), tmp_path / "source", tmp_path / "f")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    write_atomically(FileSystem(), tmp_path / "f", NEW)
    assert (tmp_path / "f").read_bytes() == NEW


def test_lock_excludes_a_second_holder_and_ends_with_its_descriptor(tmp_path: Path) -> None:
    files = FileSystem()
    first, second = (files.open(tmp_path / "f", os.O_RDWR | os.O_CREAT) for _ in range(2))
    files.lock(first)
    with pytest.raises(BlockingIOError):
        files.lock(second)
    files.close(first)
    files.lock(second)
    files.close(second)


def test_removed_file_has_no_links_left(tmp_path: Path) -> None:
    files, path = FileSystem(), tmp_path / "f"
    descriptor = files.open(path, os.O_RDWR | os.O_CREAT)
    assert files.status(descriptor).st_nlink == 1
    files.remove(path)
    files.remove(path)
    assert files.status(descriptor).st_nlink == 0
    files.close(descriptor)


def test_directory_that_exists_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    files = FailingAt()
    make_directories(files, path)
    assert path.is_dir()
    assert files.calls == ["make_directory", "fsync_directory"] * 2  # each on disk before the next
    with pytest.raises(FileExistsError):
        make_directories(FileSystem(), path)
    with pytest.raises(FileExistsError):
        FileSystem().make_directory(path)
