"""Resuming from a checkpoint: find it, read it, and reject incompatible configurations."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from esper.leyline.config import Job, TrainingConfig
from esper.leyline.errors import ConfigError, UnreadableFileError, UsageError
from esper.leyline.jobs import Layer, merge_job
from esper.leyline.payloads import CheckpointLoaded
from esper.leyline.telemetry import SCHEMA_VERSION
from esper.nissa.storage.journal import cut_back
from esper.nissa.storage.run_directory import (
    CHECKPOINTS_DIRECTORY,
    put_rounds_on_record,
    read_manifest,
)
from esper.runtime.tasks import all_tasks
from esper.simic.training.checkpoints.checkpoint_store import CheckpointStore, read_checkpoint
from esper.simic.training.checkpoints.checkpointer import CheckpointHeader, LoadedRun

__all__ = [
    "check_resumable",
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
    job, _ = merge_job(*layers, tasks=all_tasks())
    wanted = job.run.resume_path
    if wanted is None:
        return job, None
    task = job.training.task if any(_names_task(layer) for _, layer in layers) else None
    path = find_latest(Path(job.run.telemetry_dir), task) if wanted == "latest" else Path(wanted)
    loaded = load_run(path)
    stored: Layer = {"training": msgspec.to_builtins(loaded.job.training)}
    merged, _ = merge_job((str(path), stored), *layers, tasks=all_tasks())
    check_resumable(loaded.job.training, merged.training)
    return merged, loaded


def _names_task(layer: Layer) -> bool:
    table = layer.get("training")
    return isinstance(table, Mapping) and "task" in table


def find_latest(telemetry_dir: Path, task: str | None) -> Path:
    """Return the newest checkpoint of the newest run of a task, or of any task."""
    for run_dir in sorted(telemetry_dir.glob("*_*"), reverse=True):
        try:
            manifest = read_manifest(run_dir)
        except UnreadableFileError:
            continue
        checkpoint = CheckpointStore(run_dir / CHECKPOINTS_DIRECTORY).latest()
        if checkpoint is not None and task in (None, manifest.job.training.task):
            return checkpoint
    what = "a run" if task is None else f"a run of task {task!r}"
    raise UsageError(
        f"{telemetry_dir} contains no checkpoint of {what}; pass the path of a checkpoint to "
        "--resume, or the parent directory of the run to --telemetry-dir"
    )


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


def _differences(
    stored: msgspec.Struct, asked: msgspec.Struct, path: str
) -> Iterator[tuple[str, object, object]]:
    for name in stored.__struct_fields__:
        before, after = getattr(stored, name), getattr(asked, name)
        if isinstance(before, msgspec.Struct) and isinstance(after, msgspec.Struct):
            yield from _differences(before, after, f"{path}{name}.")
        elif before != after:
            yield f"{path}{name}", before, after


def run_directory_of(loaded: LoadedRun, telemetry_dir: Path) -> Path:
    """Return the directory of a checkpoint's run, also for a copy of the checkpoint elsewhere.

    It is a parent of the checkpoint, or the directory named by the run id under `telemetry_dir`.
    """
    run_id = loaded.header.run_id
    for run_dir in (loaded.path.absolute().parent.parent, *telemetry_dir.glob(f"*_{run_id}")):
        try:
            manifest = read_manifest(run_dir)
        except UnreadableFileError:
            continue
        if manifest.run_id == run_id:
            return run_dir
    raise UsageError(
        f"{loaded.path}: the directory of its run {run_id} is neither a parent of it nor in "
        f"{telemetry_dir}; pass the parent directory of the run to --telemetry-dir"
    )


def reopen_run(
    loaded: LoadedRun, telemetry_dir: Path, num_rounds: int
) -> tuple[Path, CheckpointLoaded]:
    """Rewind a run's directory to a checkpoint; return the directory and the event to emit.

    Later checkpoints are renamed before the log is truncated: a crash in between leaves this one
    as the latest, with a complete log. If the log cannot be truncated, the renames are undone.
    The manifest is then updated to `num_rounds`.
    """
    header = loaded.header
    run_dir = run_directory_of(loaded, telemetry_dir)
    store = CheckpointStore(run_dir / CHECKPOINTS_DIRECTORY)
    store.adopt(loaded.path, header.state.rounds_completed)
    later = store.set_aside(header.state.rounds_completed)
    try:
        num_events_redone = cut_back(run_dir, header.log_seq)
    except BaseException:
        store.put_back(later)
        raise
    put_rounds_on_record(run_dir, num_rounds)
    return run_dir, CheckpointLoaded(
        rounds_completed=header.state.rounds_completed,
        log_seq=header.log_seq,
        num_events_redone=num_events_redone,
        path=loaded.path.name,
        num_rounds=num_rounds,
    )
