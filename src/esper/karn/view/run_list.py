"""The list of runs: one row per run, from its manifest and the ends of its log."""

import contextlib
import stat
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from esper.karn.view.snapshot import Snapshot
from esper.karn.view.thresholds import LIMITS
from esper.karn.view.view_model import ViewModel
from esper.leyline.errors import EventDecodeError, UnreadableFileError
from esper.leyline.manifest import RunManifest
from esper.leyline.telemetry import Event, decode_event
from esper.nissa.reading.log_ends import read_ends
from esper.nissa.reading.run_lookup import manifest_of, run_directories
from esper.nissa.storage.journal import EVENTS_FILE, OPERATIONAL_FILE
from esper.nissa.storage.log_locks import FileKey, is_locked, locked_files

__all__ = ["RunRow", "list_runs", "run_row"]

SILENT_S: Final = 120.0
"""Where locks are not listed, a log that was written within this time belongs to a live run."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run; None where it is not known."""

    directory: str
    run_id: str | None
    name: str | None
    tags: dict[str, str]
    group: str | None
    task: str | None
    controller: str | None
    engine: str | None
    """As configured: `auto` where the run chose itself."""
    seed: int | None
    state: str
    """`running`, `completed`, `interrupted`, `failed`, `killed` (its log has no end) or `empty`."""
    rounds_completed: int
    num_rounds: int | None
    accuracy_pct: float | None
    """Mean validation accuracy of the last finished round."""
    task_return: float | None
    """Mean task return of the last finished round."""
    verdict: str | None
    created: str | None
    age_s: float | None
    num_bytes: int
    """Of all files of the run."""


def list_runs(parent: Path, now: float) -> list[RunRow]:
    """Return the runs of a directory, newest first."""
    locked = locked_files()
    return [run_row(run, locked, now) for run in reversed(run_directories(parent))]


def run_row(run_dir: Path, locked: frozenset[FileKey] | None, now: float) -> RunRow:
    """Return what is known of one run."""
    manifest = manifest_of(run_dir)
    view = _read_ends(run_dir)
    facts = view.run.facts if view.run else None
    # The current round has a row as well if there was an alarm in it.
    last = next((row for row in reversed(view.rounds) if row.mean_reward is not None), None)
    state = _state(run_dir, view, locked, now)
    options = manifest.job.run if manifest else None
    created_ts = _created_ts(manifest, view)
    return RunRow(
        directory=str(run_dir),
        run_id=manifest.run_id if manifest else view.run.run_id if view.run else None,
        name=options.name if options else None,
        tags=options.tags if options else {},
        group=view.run.group if view.run else _group_of(manifest),
        task=facts.task if facts else manifest.job.training.task if manifest else None,
        controller=facts.controller if facts else manifest.command if manifest else None,
        engine=options.engine.value if options else None,
        seed=facts.seed if facts else manifest.job.training.seed if manifest else None,
        state=state,
        rounds_completed=max(view.progress.rounds_completed, last.round + 1 if last else 0),
        num_rounds=_num_rounds(manifest, view),
        accuracy_pct=last.mean_accuracy_pct if last else None,
        task_return=last.mean_task_return if last else None,
        verdict=_verdict(view, state),
        created=manifest.created if manifest else None,
        age_s=None if created_ts is None else max(now - created_ts, 0.0),
        num_bytes=_size_of(run_dir),
    )


def _size_of(run_dir: Path) -> int:
    total = 0
    for path in run_dir.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a checkpoint that has just been replaced
            status = path.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def _group_of(manifest: RunManifest | None) -> str | None:
    return manifest.job.training.group_id if manifest else None


def _num_rounds(manifest: RunManifest | None, view: Snapshot) -> int | None:
    """Return the number of rounds; a resume changes it in the manifest only."""
    if manifest is not None:
        return manifest.job.training.n_episodes
    return view.progress.num_rounds


def _created_ts(manifest: RunManifest | None, view: Snapshot) -> float | None:
    try:
        return datetime.fromisoformat(manifest.created if manifest else "").timestamp()
    except ValueError:
        return view.run.started_ts if view.run else None


def _read_ends(run_dir: Path) -> Snapshot:
    """Return the view of a run as if its log consisted of its ends only."""
    model = ViewModel()
    for name in (OPERATIONAL_FILE, EVENTS_FILE):
        try:
            lines = read_ends(run_dir / name, LIMITS.trend_rounds)
        except UnreadableFileError:
            continue  # a compressed log, or none yet
        for event in _renumbered(lines):
            model.apply(event)
    return model.snapshot()


def _renumbered(lines: Iterable[bytes]) -> Iterable[Event]:
    """Yield the events, numbered without gaps: what lies between them was left out on purpose."""
    seq = 0
    for line in lines:
        try:
            event = decode_event(line)
        except EventDecodeError:
            continue  # `validate` reports damage
        yield msgspec.structs.replace(event, seq=seq)
        seq += 1


def _state(run_dir: Path, view: Snapshot, locked: frozenset[FileKey] | None, now: float) -> str:
    log = run_dir / EVENTS_FILE
    try:
        is_live = now - log.stat().st_mtime < SILENT_S if locked is None else is_locked(log, locked)
    except OSError:
        is_live = False
    status = view.progress.status
    if is_live:
        return "running"
    if status == "running":
        return "killed"
    return "empty" if status == "waiting" else status


def _verdict(view: Snapshot, state: str) -> str | None:
    """Return what the dashboard's headline says beyond the state of the run."""
    if state in ("empty", "failed", "interrupted"):
        return view.progress.reason
    return view.verdict.headline.partition(", ")[2] or None
