"""Several runs beside each other: their curves, what differs in configuration, their counts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from esper.karn.view.run_curves import RoundPoint, RunCurves
from esper.leyline.errors import UnreadableFileError, UsageError
from esper.leyline.manifest import RunManifest
from esper.nissa.analysis.diff import config_leaves, config_text
from esper.nissa.reading.run_lookup import is_run_directory, manifest_of

__all__ = ["MAX_CHOSEN", "ChosenRuns", "ConfigRow"]

MAX_CHOSEN: Final = 12
MAX_KEPT: Final = 32
"""Runs whose curves stay in memory."""


class RunCurve(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an overlay."""

    directory: str
    run_id: str | None
    name: str | None
    points: tuple[RoundPoint, ...]
    counts: dict[str, int]
    """Events by type."""
    is_read: bool
    """False if the log was read in part; the next request reads more."""
    problem: str | None
    """Why the log cannot be shown."""


class ConfigRow(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration key that not all runs have the same value of."""

    key: str
    values: tuple[str | None, ...]
    """In the order of the runs; None for a run without a readable manifest."""


class _Kept:
    """What was read of one run."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.begin()

    def begin(self) -> None:
        """Forget what was read."""
        self.manifest: RunManifest | None = manifest_of(self.run_dir)
        cost = None if self.manifest is None else self.manifest.host_flop_per_sample
        self.curves = RunCurves(self.run_dir, cost)
        self.is_read = False
        self.problem: str | None = None

    def read_more(self) -> bool:
        """Read the next part of the log; return False if there is none."""
        try:
            has_read = self.curves.read_more()
        except UnreadableFileError as error:
            if self.problem is None:  # a resumed run has cut the log back
                self.begin()
            self.problem, self.is_read = error.reason, True
            return False
        self.problem, self.is_read = None, not has_read
        return has_read


class ChosenRuns:
    """Reads the runs of overlays; blocks on file access."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._kept: dict[str, _Kept] = {}

    def choose(self, names: Sequence[str]) -> None:
        """Keep these runs, and drop those that were chosen longest ago.

        Raises:
            UsageError: if there are too many, or one is not a run of the directory.
        """
        if len(names) > MAX_CHOSEN:
            raise UsageError(f"{len(names)} runs chosen; at most {MAX_CHOSEN} can be overlaid")
        for name in names:
            kept = self._kept.pop(name, None)
            self._kept[name] = _Kept(self._run_named(name)) if kept is None else kept
        for name in list(self._kept)[:-MAX_KEPT]:
            del self._kept[name]

    def read_more(self, names: Sequence[str]) -> bool:
        """Read the next part of the first of these runs that has more; return False if none has."""
        return any(self._kept[name].read_more() for name in names)

    def differences(self, names: Sequence[str]) -> tuple[ConfigRow, ...]:
        """Return what differs in the configuration of these runs."""
        return _differences([self._kept[name].manifest for name in names])

    def curve(self, name: str) -> RunCurve:
        """Return what has been read of a run: nothing, if it was dropped since it was chosen."""
        self.choose([name])
        return _curve_of(self._kept[name])

    def _run_named(self, name: str) -> Path:
        run_dir = self._parent / name
        # A name of one part cannot lead out of the directory.
        if name in ("", ".", "..") or run_dir.name != name or not is_run_directory(run_dir):
            raise UsageError(f"run = {name[:80]!r}: no such run here")
        return run_dir


def _curve_of(kept: _Kept) -> RunCurve:
    manifest = kept.manifest
    return RunCurve(
        directory=kept.run_dir.name,
        run_id=None if manifest is None else manifest.run_id,
        name=None if manifest is None else manifest.job.run.name,
        points=kept.curves.points(),
        counts=kept.curves.counts,
        is_read=kept.is_read,
        problem=kept.problem,
    )


def _differences(manifests: Sequence[RunManifest | None]) -> tuple[ConfigRow, ...]:
    configs = [None if one is None else _texts(one) for one in manifests]
    keys = dict.fromkeys(key for config in configs for key in config or ())
    rows = (
        ConfigRow(
            key=key,
            values=tuple(None if config is None else config.get(key) for config in configs),
        )
        for key in keys
    )
    return tuple(row for row in rows if len({value for value in row.values if value}) > 1)


def _texts(manifest: RunManifest) -> dict[str, str]:
    training = msgspec.to_builtins(manifest.job.training)
    return {key: config_text(value) for key, value in config_leaves(training)}
