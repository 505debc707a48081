"""Checkpoint files: written atomically, and validated as untrusted input when read."""

import io
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from esper.leyline.errors import RunFailedError, UnreadableFileError, shown
from esper.nissa.storage.files import (
    FileSystem,
    link_atomically,
    read_limited,
    write_atomically,
)

__all__ = [
    "CHECKPOINT_VERSION",
    "CheckpointStore",
    "SavedCheckpoint",
    "check_version",
    "encode_checkpoint",
    "read_checkpoint",
    "read_tensors",
]

FIRST_RELEASE: Final = "Esper 0.1"
"""What wrote version 1 of checkpoints and grown networks."""
CHECKPOINT_VERSION: Final = 2
NUM_KEPT: Final = 3
MAX_CHECKPOINT_BYTES: Final = 4 << 30
BEST_FILE: Final = "best.pt"
_PREFIX: Final = "round-"
_REDONE_PREFIX: Final = "redone-"
_NAME: Final = re.compile(rf"{_PREFIX}([0-9]{{6}}|[1-9][0-9]{{6,17}})\.pt")
"""The names that `_path_of` gives, each number spelled in one way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A checkpoint on disk."""

    path: Path
    num_bytes: int


@dataclass(eq=False, slots=True)
class CheckpointStore:
    """The checkpoints of one run: the most recent ones and the best."""

    directory: Path
    copy_to: Path | None = None
    """Additional path for the last checkpoint."""
    files: FileSystem = field(default_factory=FileSystem)

    def save(self, data: bytes, rounds_completed: int, *, is_best: bool) -> SavedCheckpoint:
        """Write a checkpoint and delete the ones beyond the retention limit."""
        path = self._path_of(rounds_completed)
        self._write(path, data)
        if is_best:
            self._write(self.directory / BEST_FILE, data, twin=path)
        if self.copy_to is not None:
            self._write(self.copy_to, data)
        # After the new one is on disk; at no time are there fewer than the promised number.
        for old in self._rounds()[:-NUM_KEPT]:
            self.files.remove(self._path_of(old))
        return SavedCheckpoint(path=path, num_bytes=len(data))

    def save_best(self, data: bytes) -> None:
        """Write the checkpoint of the best round so far, separately from the most recent ones."""
        self._write(self.directory / BEST_FILE, data)

    def latest(self) -> Path | None:
        """Return the newest checkpoint, or None."""
        rounds = self._rounds()
        return self._path_of(rounds[-1]) if rounds else None

    def adopt(self, path: Path, rounds_completed: int) -> None:
        """Copy a checkpoint into this run's directory, unless it is already there."""
        target = self._path_of(rounds_completed)
        if not target.exists():
            write_atomically(self.files, target, path.read_bytes())

    def set_aside(self, rounds_completed: int) -> list[int]:
        """Rename the checkpoints of later rounds, which will be redone; return these rounds."""
        later = [number for number in self._rounds() if number > rounds_completed]
        for number in later:
            self.files.rename(self._path_of(number), self._redone_path_of(number))
        if later:
            # The log is cut after this: no crash may bring back a checkpoint that is ahead of it.
            self.files.fsync_directory(self.directory)
        return later

    def put_back(self, rounds: list[int]) -> None:
        """Undo `set_aside`."""
        for number in rounds:
            self.files.rename(self._redone_path_of(number), self._path_of(number))

    def _write(self, path: Path, data: bytes, *, twin: Path | None = None) -> None:
        """Write a file, as a hard link if `twin` already has the same contents."""
        try:
            if twin is None or not link_atomically(self.files, twin, path):
                write_atomically(self.files, path, data)
        except OSError as error:
            raise RunFailedError(
                f"{path}: the checkpoint could not be written: {error.strerror}; "
                "the previous checkpoint is intact"
            ) from error

    def _rounds(self) -> list[int]:
        """Return the rounds that have a checkpoint, in order; other files are ignored."""
        # By the exact name: temporary files and copies that a user has made must not be deleted.
        found = (_NAME.fullmatch(path.name) for path in self.directory.glob(f"{_PREFIX}*.pt"))
        numbers = sorted(int(match[1]) for match in found if match is not None)
        return [number for number in numbers if self._path_of(number).is_file()]

    def _path_of(self, rounds_completed: int) -> Path:
        return self.directory / f"{_PREFIX}{rounds_completed:06d}.pt"

    def _redone_path_of(self, rounds_completed: int) -> Path:
        return self.directory / f"{_REDONE_PREFIX}{rounds_completed:06d}.pt"


def encode_checkpoint(contents: dict[str, Any]) -> bytes:
    """Return a checkpoint's bytes, independent of later changes to `contents`."""
    buffer = io.BytesIO()
    torch.save({"version": CHECKPOINT_VERSION, **contents}, buffer)
    return buffer.getvalue()


def read_tensors(path: Path, what: str) -> object:
    """Read a file that `torch.save` wrote; only tensors and primitives are loaded.

    Args:
        path: the file.
        what: the expected kind of file, for the error message.
    """
    if path.exists() and not path.is_file():  # reading a pipe or a device might never end
        raise UnreadableFileError(path, f"not a {what} of Esper: not a regular file")
    # Read once and checked in memory: a file that is replaced meanwhile cannot be checked as one
    # thing and loaded as another.
    data = read_limited(path, MAX_CHECKPOINT_BYTES, what)
    try:
        # torch does not verify the archive's checksums, and would load a flipped bit as a weight.
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_size(archive, len(data))
            damaged = archive.testzip()
        state: object = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    # Untrusted bytes can make the unpickler raise any exception.
    except Exception:
        raise UnreadableFileError(path, f"not a {what} of Esper, or damaged") from None
    if damaged is not None:
        raise UnreadableFileError(path, f"not a {what} of Esper, or damaged: {damaged}")
    return state


def _check_size(archive: zipfile.ZipFile, num_bytes: int) -> None:
    """Reject an archive that unpacks to more than its size; `torch.save` does not compress."""
    if sum(item.file_size for item in archive.infolist()) > num_bytes:
        raise ValueError("unpacks to more than its size")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read and validate a checkpoint from an untrusted file."""
    state = read_tensors(path, "checkpoint")
    if not isinstance(state, dict) or "version" not in state:
        raise UnreadableFileError(path, "not a checkpoint of Esper")
    check_version(path, state["version"], CHECKPOINT_VERSION, "train it again")
    return state


def check_version(path: Path, found: object, expected: int, way_on: str) -> None:
    """Raise if a file has another version than this release reads.

    Args:
        path: the file.
        found: its version.
        expected: the version that is read.
        way_on: what to do instead.
    """
    if found != expected:
        release = FIRST_RELEASE if found == 1 else "another release of Esper"
        raise UnreadableFileError(
            path,
            f"was written by {release} (version {shown(found)}), and this one reads version "
            f"{expected}; {way_on}, or use that release",
        )
