"""Resuming from a checkpoint: find it, read it, and reject incompatible configurations."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from esper.leyline.config import LATEST_RUN, Job, TrainingConfig
from esper.leyline.errors import ConfigError, UnreadableFileError, UsageError, shown
from esper.leyline.jobs import Layer, merge_job
from esper.leyline.payloads import CheckpointLoaded
from esper.leyline.tasks import TaskSpec, is_task_reference
from esper.leyline.telemetry import SCHEMA_VERSION
from esper.nissa.reading.run_lookup import (
    RUNS_DIRECTORY,
    find_run,
    manifest_of,
    run_directories,
)
from esper.nissa.storage.journal import LogClaim, apply_cut, claim_run, plan_cut
from esper.nissa.storage.run_directory import (
    CHECKPOINTS_DIRECTORY,
    put_on_record,
    read_manifest,
    require_own_directories,
)
from esper.runtime.tasks import all_tasks, tasks_for
from esper.simic.training.checkpoints.checkpoint_store import CheckpointStore, read_checkpoint
from esper.simic.training.checkpoints.checkpointer import (
    CheckpointHeader,
    LoadedRun,
    decisive_part,
)
from esper.simic.training.checkpoints.log_agreement import check_agreement

__all__ = [
    "OpenedRun",
    "check_resumable",
    "check_task_unchanged",
    "find_checkpoint",
    "find_latest",
    "load_run",
    "reopen_run",
    "resolve_job",
    "run_directory_of",
]


def resolve_job(layers: Sequence[tuple[str, Layer]]) -> tuple[Job, LoadedRun | None]:
    """Return the job of the layers and, with `resume_path`, the checkpoint to resume from.

    Keys that the layers do not set are then taken from the checkpoint.
    """
    tasks = tasks_for(layers)
    job, _ = merge_job(*layers, tasks=tasks)
    wanted = job.run.resume_path
    if wanted is None:
        return job, None
    task = job.training.task if any(_names_task(layer) for _, layer in layers) else None
    telemetry_dir = Path(job.run.telemetry_dir)
    if wanted == LATEST_RUN:
        path = find_latest(telemetry_dir, task)
    else:
        path = find_checkpoint(wanted, telemetry_dir)
    loaded = load_run(path)
    # As the lowest layer: what the user gives stays visible on top, and can be compared with it.
    stored: Layer = {"training": msgspec.to_builtins(loaded.job.training)}
    merged, _ = merge_job((str(path), stored), *layers, tasks=tasks)
    check_resumable(loaded.job.training, merged.training)
    return merged, loaded


def _names_task(layer: Layer) -> bool:
    table = layer.get("training")
    return isinstance(table, Mapping) and "task" in table


def find_latest(telemetry_dir: Path, task: str | None) -> Path:
    """Return the newest checkpoint of the newest run of a task, or of any task."""
    runs = run_directories(telemetry_dir) if telemetry_dir.is_dir() else []
    for run_dir in reversed(runs):
        manifest = manifest_of(run_dir)
        checkpoint = _checkpoint_in(run_dir)
        is_wanted = manifest is not None and task in (None, manifest.job.training.task)
        if is_wanted and checkpoint is not None:
            return checkpoint
    what = "a run" if task is None else f"a run of task {task!r}"
    raise UsageError(
        f"{telemetry_dir} contains no checkpoint of {what}; pass the path of a checkpoint to "
        "--resume, or the parent directory of the run to --telemetry-dir"
    )


def find_checkpoint(reference: str, telemetry_dir: Path = RUNS_DIRECTORY) -> Path:
    """Return the checkpoint at a path, or the newest one of a run.

    Args:
        reference: a checkpoint, or a run's directory, id, prefix or name, or `latest`.
        telemetry_dir: where runs are looked up.
    """
    path = Path(reference)
    if path.exists() and not path.is_dir():
        return path
    run_dir = find_run(path, telemetry_dir)
    checkpoint = _checkpoint_in(run_dir)
    if checkpoint is None:
        raise UnreadableFileError(run_dir, "the run has no checkpoint")
    return checkpoint


def _checkpoint_in(run_dir: Path) -> Path | None:
    return CheckpointStore(run_dir / CHECKPOINTS_DIRECTORY).latest()


def load_run(path: Path) -> LoadedRun:
    """Read the checkpoint that a run resumes from."""
    stored = read_checkpoint(path)
    try:
        header = msgspec.convert(stored.pop("header", None), CheckpointHeader)
    except msgspec.ValidationError as error:
        raise UnreadableFileError(path, f"not a checkpoint of a run: {error}") from None
    if header.schema_version != SCHEMA_VERSION:
        raise UnreadableFileError(
            path,
            f"belongs to a log of schema version {header.schema_version}, this Esper writes "
            f"{SCHEMA_VERSION}",
        )
    task = header.job.training.task
    # A checkpoint may be somebody else's; only the user decides which code is executed.
    if is_task_reference(task) and task not in all_tasks():
        raise UsageError(f"{path}: its task is in code beside the run; load it with --task {task}")
    return LoadedRun(
        path=path,
        header=header,
        controller=stored if "agent" in stored else None,
        num_bytes=path.stat().st_size,
    )


def check_resumable(stored: TrainingConfig, asked: TrainingConfig) -> None:
    """Reject a configuration that differs from the checkpoint's in more than its rounds."""
    for name, before, after in _differences(stored, asked, ""):
        if name == "n_episodes" and isinstance(after, int) and after > stored.n_episodes:
            continue
        raise ConfigError(
            f"--resume: training.{name} was {before!r} and is now {after!r}; only the number of "
            "rounds of a resumed run can be increased: leave this key out, or start a new run"
        )


def check_task_unchanged(header: CheckpointHeader, task: TaskSpec) -> None:
    """Reject a checkpoint whose task has become another one under the same name."""
    if header.task is None:
        return
    for name, before, after in _differences(header.task, decisive_part(task), ""):
        raise ConfigError(
            f"--resume: {name} of task {task.name!r} was {shown(before)} and is now "
            f"{shown(after)}; a run goes on with the task that it began with: restore it, or start "
            "a new run"
        )


def _differences(
    stored: msgspec.Struct, asked: msgspec.Struct, path: str
) -> Iterator[tuple[str, object, object]]:
    for name in stored.__struct_fields__:
        before, after = getattr(stored, name), getattr(asked, name)
        if isinstance(before, msgspec.Struct) and type(before) is type(after):
            yield from _differences(before, after, f"{path}{name}.")
        elif before != after:
            yield f"{path}{name}", before, after


def run_directory_of(loaded: LoadedRun, telemetry_dir: Path) -> Path:
    """Return the directory of a checkpoint's run, also for a copy of the checkpoint elsewhere.

    It is a parent of the checkpoint, or the directory named by the run id under `telemetry_dir`.
    """
    run_id = loaded.header.run_id
    # Not a pattern of the id, which a foreign checkpoint may have chosen.
    named = (path for path in telemetry_dir.glob("*_*") if path.name.endswith(f"_{run_id}"))
    for run_dir in (loaded.path.absolute().parent.parent, *named):
        try:
            manifest = read_manifest(run_dir)
        except UnreadableFileError:
            continue
        if manifest.run_id == run_id:
            return run_dir
    raise UsageError(
        f"{loaded.path}: the directory of its run {shown(run_id)} is neither a parent of it nor in "
        f"{telemetry_dir}; pass the parent directory of the run to --telemetry-dir"
    )


class OpenedRun(NamedTuple):
    """The directory of a run and, for a resumed one, its first event and the lock on its log."""

    run_dir: Path
    event: CheckpointLoaded | None = None
    claim: LogClaim | None = None


def reopen_run(loaded: LoadedRun, job: Job) -> OpenedRun:
    """Rewind a run's directory to a checkpoint, and update its manifest to the job.

    Nothing is changed before the log is locked and known to agree with the checkpoint. Later
    checkpoints are renamed before the log is truncated: a crash in between leaves this one as the
    latest, with a complete log. If the log cannot be truncated, the renames are undone.
    """
    run_dir = run_directory_of(loaded, Path(job.run.telemetry_dir))
    claim = claim_run(run_dir)
    try:
        num_events_redone = _rewind(run_dir, loaded, claim)
        put_on_record(run_dir, job)
    except OSError as error:
        claim.close()
        path, reason = error.filename or claim.path, error.strerror or str(error)
        raise UnreadableFileError(path, f"the run cannot be rewound: {reason}") from error
    except BaseException:
        claim.close()
        raise
    header = loaded.header
    event = CheckpointLoaded(
        rounds_completed=header.state.rounds_completed,
        log_seq=header.log_seq,
        num_events_redone=num_events_redone,
        path=loaded.path.name,
        num_rounds=job.training.n_episodes,
    )
    return OpenedRun(run_dir, event, claim)


def _rewind(run_dir: Path, loaded: LoadedRun, claim: LogClaim) -> int:
    """Rewind checkpoints and log; return the number of events that were cut off."""
    header = loaded.header
    require_own_directories(run_dir)
    cut = plan_cut(claim.path, header.log_seq)
    check_agreement(loaded.path, header, claim.path, cut)
    store = CheckpointStore(run_dir / CHECKPOINTS_DIRECTORY)
    store.adopt(loaded.path, header.state.rounds_completed)
    later = store.set_aside(header.state.rounds_completed)
    try:
        apply_cut(claim, cut)
    except BaseException:
        # The log is uncut, so the rounds of these checkpoints are still in it.
        store.put_back(later)
        raise
    return cut.num_events_cut
