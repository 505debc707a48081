"""Checkpoints: a crash leaves the old one or the new one, and reading one trusts nobody."""

import io
import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from esper.leyline.errors import RunFailedError, UnreadableFileError
from esper.nissa.files import FileSystem, write_atomically

__all__ = ["CHECKPOINT_VERSION", "CheckpointStore", "SavedCheckpoint", "read_checkpoint"]

CHECKPOINT_VERSION: Final = 1
NUM_KEPT: Final = 3
BEST_FILE: Final = "best.pt"


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

    def save(
        self, state: dict[str, Any], rounds_completed: int, *, is_best: bool
    ) -> SavedCheckpoint:
        """Write a checkpoint and remove those that are no longer kept."""
        buffer = io.BytesIO()
        torch.save({"version": CHECKPOINT_VERSION, **state}, buffer)
        data = buffer.getvalue()
        path = self.directory / f"round-{rounds_completed:06d}.pt"
        copies = [self.directory / BEST_FILE] if is_best else []
        copies += [] if self.copy_to is None else [self.copy_to]
        try:
            for target in (path, *copies):
                write_atomically(self.files, target, data)
            self._remove_old()
        except OSError as error:
            raise RunFailedError(
                f"{error.filename or path}: the checkpoint could not be written: {error.strerror}; "
                "the one before it is intact"
            ) from error
        return SavedCheckpoint(path=path, num_bytes=len(data))

    def latest(self) -> Path | None:
        """Return the newest checkpoint, or None."""
        return max(self.directory.glob("round-*.pt"), default=None)

    def _remove_old(self) -> None:
        for path in sorted(self.directory.glob("round-*.pt"))[:-NUM_KEPT]:
            os.unlink(path)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; only tensors and primitives are ever loaded."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UnreadableFileError(path, f"cannot read the checkpoint: {error.strerror}") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError):
        raise UnreadableFileError(path, "not a checkpoint of Esper, or damaged") from None
    if not isinstance(state, dict) or "version" not in state:
        raise UnreadableFileError(path, "not a checkpoint of Esper")
    if state["version"] != CHECKPOINT_VERSION:
        raise UnreadableFileError(
            path, f"has version {state['version']}, this Esper reads {CHECKPOINT_VERSION}"
        )
    return state
