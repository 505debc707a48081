"""The request to a data loader and the origin it reports. No torch."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from esper.leyline.config import DataSource

__all__ = ["CancelCheck", "DataOrigin", "DataRequest", "ProgressCallback", "never_cancelled"]

ProgressCallback: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the file name, the bytes so far and, if known, the total number of bytes."""

CancelCheck: TypeAlias = Callable[[], None]
"""Called between chunks of work; raises to cancel it."""


class DataOrigin(StrEnum):
    """Where data came from."""

    FILES = "files"
    DOWNLOAD = "download"
    """Downloaded by Esper, now or in an earlier run; the two are not distinguished, so that a
    repeated run reports the same origin."""
    PACKAGE = "package"
    """Shipped with Esper or with Python."""
    SYNTHETIC = "synthetic"
    NONE = "none"
    """Probes are computed and use no data."""


def never_cancelled() -> None:
    """Do nothing, so that the work is never cancelled."""


def default_cache_dir() -> Path:
    """Return the default directory for downloads."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "esper"
    except RuntimeError:  # neither HOME nor an entry of this user in the system's list
        return Path(tempfile.gettempdir()) / f"esper-cache-{os.getuid()}"


def _ignore_progress(name: str, num_bytes: int, total_bytes: int | None) -> None:
    """Ignore the progress report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRequest:
    """A run's request to a loader."""

    source: DataSource = DataSource.AUTO
    data_dir: Path | None = None
    """Directory of the user's files; never written to."""
    cache_dir: Path = field(default_factory=default_cache_dir)
    on_progress: ProgressCallback = _ignore_progress
    check_cancelled: CancelCheck = never_cancelled
