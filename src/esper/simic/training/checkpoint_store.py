"""Checkpoints: a crash leaves the old one or the new one, and reading one trusts nobody."""

import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from esper.leyline.errors import RunFailedError, UnreadableFileError
from esper.nissa.files import FileSystem, link_atomically, write_atomically

__all__ = [
    "CHECKPOINT_VERSION",
    "CheckpointStore",
    "SavedCheckpoint",
    "encode_checkpoint",
    "read_checkpoint",
    "read_tensors",
]

CHECKPOINT_VERSION: Final = 1
NUM_KEPT: Final = 3
BEST_FILE: Final = "best.pt"
_PREFIX: Final = "round-"
_REDONE_PREFIX: Final = "redone-"


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that is on disk."""

    path: Path
    num_bytes: int


@dataclass(eq=False, slots=True)
class CheckpointStore:
    """The checkpoints of one run: the last few, and the best."""

    directory: Path
    copy_to: Path | None = None
    """Where the last checkpoint is written once more."""
    files: FileSystem = field(default_factory=FileSystem)

    def save(self, data: bytes, rounds_completed: int, *, is_best: bool) -> SavedCheckpoint:
        """Write a checkpoint and remove those that are no longer kept."""
        path = self._path_of(rounds_completed)
        self._write(path, data)
        if is_best:
            self._write(self.directory / BEST_FILE, data, twin=path)
        if self.copy_to is not None:
            self._write(self.copy_to, data)
        for old in self._rounds()[:-NUM_KEPT]:
            self.files.remove(old)
        return SavedCheckpoint(path=path, num_bytes=len(data))

    def save_best(self, data: bytes) -> None:
        """Write the checkpoint of the best round so far, which is not among the last."""
        self._write(self.directory / BEST_FILE, data)

    def latest(self) -> Path | None:
        """Return the newest checkpoint, or None."""
        return max(self._rounds(), default=None)

    def adopt(self, path: Path, rounds_completed: int) -> None:
        """Make sure that a checkpoint, maybe a copy, is among the last of this run."""
        target = self._path_of(rounds_completed)
        if not target.exists():
            write_atomically(self.files, target, path.read_bytes())

    def set_aside(self, rounds_completed: int) -> list[Path]:
        """Rename the checkpoints of later rounds, which will be made again; return their names."""
        later = [path for path in self._rounds() if path > self._path_of(rounds_completed)]
        for path in later:
            self.files.rename(path, _redone(path))
        return later

    def put_back(self, paths: list[Path]) -> None:
        """Undo `set_aside`."""
        for path in paths:
            self.files.rename(_redone(path), path)

    def _write(self, path: Path, data: bytes, *, twin: Path | None = None) -> None:
        """Write a file; a second name is enough where its twin holds the same already."""
        try:
            if twin is None or not link_atomically(self.files, twin, path):
                write_atomically(self.files, path, data)
        except OSError as error:
            raise RunFailedError(
                f"{path}: the checkpoint could not be written: {error.strerror}; "
                "the one before it is intact"
            ) from error

    def _rounds(self) -> list[Path]:
        return sorted(self.directory.glob(f"{_PREFIX}*.pt"))

    def _path_of(self, rounds_completed: int) -> Path:
        return self.directory / f"{_PREFIX}{rounds_completed:06d}.pt"


def _redone(path: Path) -> Path:
    return path.with_name(_REDONE_PREFIX + path.name.removeprefix(_PREFIX))


def encode_checkpoint(contents: dict[str, Any]) -> bytes:
    """Return a checkpoint's bytes; what it holds may change afterwards."""
    buffer = io.BytesIO()
    torch.save({"version": CHECKPOINT_VERSION, **contents}, buffer)
    return buffer.getvalue()


def read_tensors(path: Path, what: str) -> object:
    """Read a file that `torch.save` wrote; only tensors and primitives are ever loaded.

    Args:
        path: the file.
        what: what it is supposed to be, for the message about one that is not.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableFileError(path, f"cannot read the {what}: {error.strerror}") from None
    try:
        # torch itself looks at no checksum, and would take a flipped bit for a weight.
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_size(archive, len(data))
            damaged = archive.testzip()
        state: object = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    # There is no telling what is raised about bytes that somebody else wrote.
    except Exception:
        raise UnreadableFileError(path, f"not a {what} of Esper, or damaged") from None
    if damaged is not None:
        raise UnreadableFileError(path, f"not a {what} of Esper, or damaged: {damaged}")
    return state


def _check_size(archive: zipfile.ZipFile, num_bytes: int) -> None:
    """Refuse an archive that unpacks to more than it is; `torch.save` compresses nothing."""
    if sum(item.file_size for item in archive.infolist()) > num_bytes:
        raise ValueError("unpacks to more than it is")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, trusting nobody."""
    state = read_tensors(path, "checkpoint")
    if not isinstance(state, dict) or "version" not in state:
        raise UnreadableFileError(path, "not a checkpoint of Esper")
    if state["version"] != CHECKPOINT_VERSION:
        raise UnreadableFileError(
            path, f"has version {state['version']}, this Esper reads {CHECKPOINT_VERSION}"
        )
    return state
