"""Which run an argument means: a directory, a log, an id, a prefix, a name or `latest`."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper.leyline.errors import UnreadableFileError, UsageError, nearest_name, shown
from esper.nissa.reading.lines import LOG_NAME, STDIN

if TYPE_CHECKING:
    from esper.leyline.manifest import RunManifest

__all__ = [
    "RUNS_DIRECTORY",
    "find_log",
    "find_logs",
    "find_run",
    "is_directory_of_runs",
    "is_run_directory",
    "manifest_of",
    "run_directories",
    "run_directory_of",
]

RUNS_DIRECTORY: Final = Path("runs")
"""Where a bare id, prefix or name is looked up, and where runs are by default."""

_LOG_NAMES: Final = (LOG_NAME, f"{LOG_NAME}.zst", f"{LOG_NAME}.gz")
_LATEST: Final = "latest"
_MANIFEST: Final = "run.json"
_STAMPED: Final = re.compile(r"(\d{8}T\d{6}Z)_(.+)")
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_MAX_LISTED: Final = 5


def find_logs(paths: Iterable[Path]) -> list[Path]:
    """Return the logs of these files, runs and directories of runs."""
    return [log for path in paths for log in _logs_at(path, RUNS_DIRECTORY)]


def find_log(path: Path, parent: Path = RUNS_DIRECTORY) -> Path:
    """Return the log of one run; a directory of several runs is an error.

    Args:
        path: a run directory or a log, or an id, a prefix, a name or `latest`, alone or behind
            another directory of runs (`elsewhere/latest`).
        parent: the directory in which those that stand alone are looked up.
    """
    logs = _logs_at(path, parent)
    if len(logs) > 1:
        newest = run_directories(path)[-1]
        raise UsageError(
            f"{path}: contains {len(logs)} runs; name one of them, such as {newest}, or "
            f"{path / _LATEST} for the newest"
        )
    return logs[0]


def find_run(path: Path, parent: Path = RUNS_DIRECTORY) -> Path:
    """Return the directory of one run, which `find_log` would find the log of."""
    log = find_log(path, parent)
    directory = run_directory_of(log)
    if directory is None:
        raise UnreadableFileError(path, "a log on its own; expected a run directory")
    return directory


def _logs_at(path: Path, parent: Path) -> list[Path]:
    if path == STDIN or path.is_file():
        return [path]
    if not path.exists():
        path = _referred_run(path, parent)
    if not path.is_dir():  # a pipe or a device
        return [path]
    logs = _log_in(path) or [log for run in run_directories(path) for log in _log_in(run)]
    if not logs:
        raise UnreadableFileError(path, f"no {LOG_NAME} here, nor one level below")
    return logs


def _log_in(directory: Path) -> list[Path]:
    return [directory / name for name in _LOG_NAMES if (directory / name).is_file()][:1]


def run_directory_of(log: Path) -> Path | None:
    """Return the run directory of a log, or None for a standalone log file."""
    return log.parent if log.name in _LOG_NAMES else None


def run_directories(parent: Path) -> list[Path]:
    """Return the run directories directly below a directory, oldest run first."""
    try:
        children = [child for child in parent.iterdir() if child.is_dir()]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UnreadableFileError(parent, f"cannot be read: {reason}") from None
    return sorted(filter(is_run_directory, children), key=_age_key)


def is_run_directory(directory: Path) -> bool:
    """Return whether a directory holds a run: its manifest, or its log."""
    return (directory / _MANIFEST).is_file() or bool(_log_in(directory))


def is_directory_of_runs(path: Path) -> bool:
    """Return whether a directory is no run, but has runs directly below it."""
    return path.is_dir() and not is_run_directory(path) and bool(run_directories(path))


def _age_key(run: Path) -> tuple[str, str]:
    """Return when a run was created, from its directory's name unless that was changed."""
    stamped = _STAMPED.fullmatch(run.name)
    if stamped is not None:
        return stamped[1], run.name
    manifest = manifest_of(run)
    try:
        created = datetime.fromisoformat("" if manifest is None else manifest.created)
    except ValueError:
        created = datetime.fromtimestamp(run.stat().st_mtime, UTC)
    return created.astimezone(UTC).strftime(_STAMP), run.name


def manifest_of(run: Path) -> "RunManifest | None":
    """Return a run's manifest, or None if it has none that can be read."""
    # Imported here: the configuration's types take longer to load than a small log to be counted.
    from esper.nissa.storage.run_directory import read_manifest

    try:
        return read_manifest(run)
    except UnreadableFileError:
        return None


def _referred_run(reference: Path, parent: Path) -> Path:
    """Return the run that an id, a prefix, a name or `latest` means; the path does not exist."""
    is_bare = reference.name == str(reference)
    parent = parent if is_bare else reference.parent
    runs = run_directories(parent) if parent.is_dir() else []
    if not runs:
        where = f", and there are no runs in {parent}" if is_bare or parent.is_dir() else ""
        raise UnreadableFileError(reference, f"no such file or directory{where}")
    if reference.name == _LATEST:
        return runs[-1]
    return _only_match(reference, parent, runs)


def _only_match(reference: Path, parent: Path, runs: Sequence[Path]) -> Path:
    """Return the run whose id, directory or name this is, or else the one that it begins."""
    names = {run: _names_of(run) for run in runs}
    text = reference.name
    whole = [run for run in runs if text in names[run]]
    begun = [run for run in runs if any(name.startswith(text) for name in names[run])]
    for matches in (whole, begun):
        if len(matches) == 1:
            return matches[0]
        if matches:
            listed = ", ".join(run.name for run in matches[-_MAX_LISTED:])
            more = ", …" if len(matches) > _MAX_LISTED else ""
            raise UsageError(
                f"{reference}: fits {len(matches)} runs of {parent}: {listed}{more}; write more of "
                "the id"
            )
    nearest = nearest_name(text, [name for run in runs for name in names[run]])
    hint = "" if nearest is None else f"; did you mean {shown(nearest)}?"
    raise UnreadableFileError(
        reference,
        f"no such file, nor a run of {parent} with this id or name{hint}; 'esper-telemetry runs "
        f"{parent}' lists them",
    )


def _names_of(run: Path) -> tuple[str, ...]:
    """Return what a run may be called by: its directory, its id and its name."""
    manifest = manifest_of(run)
    stamped = _STAMPED.fullmatch(run.name)
    if manifest is None:
        return (run.name,) if stamped is None else (run.name, stamped[2])
    name = manifest.job.run.name
    return (run.name, manifest.run_id) if name is None else (run.name, manifest.run_id, name)
