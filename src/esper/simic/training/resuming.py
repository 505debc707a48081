"""Going on from a checkpoint: finding it, reading it, and refusing what may not differ."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from esper.leyline.config import Job, TrainingConfig
from esper.leyline.errors import ConfigError, UnreadableFileError, UsageError
from esper.leyline.jobs import Layer, merge_job
from esper.nissa.run_directory import CHECKPOINTS_DIRECTORY, read_manifest
from esper.runtime.tasks import all_tasks
from esper.simic.training.checkpoints import CheckpointStore, read_checkpoint
from esper.simic.training.keeper import LoadedRun
from esper.simic.training.run_state import RunState

__all__ = ["check_resumable", "find_latest", "load_run", "resolve_job"]


def resolve_job(layers: Sequence[tuple[str, Layer]]) -> tuple[Job, LoadedRun | None]:
    """Return the job that layers ask for and, with `resume_path`, the checkpoint it goes on from.

    What the layers leave open is then taken from the checkpoint.
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
        f"{telemetry_dir} holds no checkpoint of {what}; give --resume a checkpoint's path, or "
        "--telemetry-dir where the run was written"
    )


def load_run(path: Path) -> LoadedRun:
    """Read the checkpoint that a run goes on from."""
    stored = read_checkpoint(path)
    try:
        return LoadedRun(
            path=path,
            job=msgspec.convert(stored["job"], Job),
            state=msgspec.convert(stored["state"], RunState),
            controller=stored if "agent" in stored else None,
            log_seq=stored["log_seq"],
            is_best=stored["is_best"],
            num_bytes=path.stat().st_size,
        )
    except (KeyError, msgspec.ValidationError) as error:
        raise UnreadableFileError(path, f"not a checkpoint of a run: {error}") from None


def check_resumable(stored: TrainingConfig, asked: TrainingConfig) -> None:
    """Refuse a configuration that would make the resumed run another run."""
    for name, before, after in _differences(stored, asked, ""):
        if name == "n_episodes" and isinstance(after, int) and after > stored.n_episodes:
            continue
        raise ConfigError(
            f"--resume: training.{name} was {before!r} and is now {after!r}; only more rounds may "
            "be asked of a run, so leave it out, or start a new run"
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
