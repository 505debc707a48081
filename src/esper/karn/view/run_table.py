"""The list of runs of a directory, kept: a run is read again only if it has changed."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from esper.karn.view.run_list import RunRow, run_row
from esper.nissa.reading.run_lookup import run_directories
from esper.nissa.storage.journal import EVENTS_FILE, OPERATIONAL_FILE
from esper.nissa.storage.log_locks import FileKey, is_locked, locked_files
from esper.nissa.storage.run_directory import MANIFEST_FILE

__all__ = ["RunTable"]

_Mark = tuple[object, ...]
"""What changes with a run: the sizes and times of its files, and whether its log is locked."""


class RunTable:
    """The rows of a directory's newest runs; blocks on file access."""

    def __init__(self, parent: Path, max_runs: int) -> None:
        self._parent = parent
        self._max_runs = max_runs
        self._rows: dict[str, RunRow] = {}
        self._marks: dict[str, _Mark] = {}
        self._runs: list[Path] = []
        self._locked: frozenset[FileKey] | None = None
        self.num_runs = 0
        """Runs in the directory, those included that are too old to be listed."""

    def changed(self) -> list[Path]:
        """Look at the directory again; return the runs whose rows are not current, newest first."""
        runs = run_directories(self._parent)
        self.num_runs = len(runs)
        self._runs = runs[::-1][: self._max_runs]
        self._locked = locked_files()
        names = {run.name for run in self._runs}
        for gone in [name for name in self._rows if name not in names]:
            del self._rows[gone], self._marks[gone]
        return [run for run in self._runs if self._marks.get(run.name) != self._mark_of(run)]

    def read(self, run: Path, now: float) -> None:
        """Read the row of one run."""
        mark = self._mark_of(run)
        row = run_row(run, self._locked, now)
        # The path on this machine is not for visitors.
        self._rows[run.name] = msgspec.structs.replace(row, directory=run.name)
        self._marks[run.name] = mark

    def rows(self) -> list[RunRow]:
        """Return the rows that have been read, newest run first."""
        return [self._rows[run.name] for run in self._runs if run.name in self._rows]

    def _mark_of(self, run: Path) -> _Mark:
        return (*self._states(run), self._is_locked(run / EVENTS_FILE))

    def _states(self, run: Path) -> Iterator[tuple[int, int] | None]:
        for name in (EVENTS_FILE, OPERATIONAL_FILE, MANIFEST_FILE):
            try:
                status = os.stat(run / name)
            except OSError:
                yield None
            else:
                yield status.st_size, status.st_mtime_ns

    def _is_locked(self, log: Path) -> bool:
        try:
            return self._locked is not None and is_locked(log, self._locked)
        except OSError:
            return False
