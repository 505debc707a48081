"""Run directories: their names and layout, and building, writing and reading the manifest."""

import importlib.metadata
import os
import platform
import secrets
import subprocess
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Final

import msgspec

from esper.leyline.config import Job, ProfilerConfig
from esper.leyline.contexts import ContextSpec
from esper.leyline.errors import UnreadableFileError, UsageError
from esper.leyline.manifest import RunManifest
from esper.leyline.telemetry import SCHEMA_VERSION
from esper.leyline.untyped_json import readable_json
from esper.nissa.storage.files import (
    FileSystem,
    make_directories,
    read_limited,
    require_own_directory,
    write_atomically,
)
from esper.version import __version__

__all__ = [
    "CHECKPOINTS_DIRECTORY",
    "MANIFEST_FILE",
    "OWN_DIRECTORIES",
    "SINKS_DIRECTORY",
    "TENSORBOARD_DIRECTORY",
    "build_manifest",
    "cpu_model",
    "create_run_directory",
    "manifest_bytes",
    "new_run_id",
    "put_on_record",
    "read_manifest",
    "require_own_directories",
    "traces_directory",
]

MANIFEST_FILE: Final = "run.json"
CHECKPOINTS_DIRECTORY: Final = "checkpoints"
SINKS_DIRECTORY: Final = "sinks"
"""Positions of the sinks."""
TENSORBOARD_DIRECTORY: Final = "tensorboard"
WANDB_DIRECTORY: Final = "wandb"
OWN_DIRECTORIES: Final = (
    CHECKPOINTS_DIRECTORY,
    SINKS_DIRECTORY,
    TENSORBOARD_DIRECTORY,
    WANDB_DIRECTORY,
)
"""What a run and its sinks write to, beside the run's own files."""
MAX_MANIFEST_BYTES: Final = 1 << 20
RECORDED_PACKAGES: Final = ("torch", "numpy", "msgspec", "anyio", "orjson")


def new_run_id() -> str:
    """Return a random run id from the operating system's generator, not from a seeded one."""
    return secrets.token_hex(4)


def create_run_directory(
    telemetry_dir: Path, manifest: RunManifest, *, files: FileSystem | None = None
) -> Path:
    """Create `<UTC time>_<run_id>/` with its manifest and an empty checkpoint directory."""
    files = files or FileSystem()
    stamp = datetime.fromisoformat(manifest.created).strftime("%Y%m%dT%H%M%SZ")
    run_dir = telemetry_dir / f"{stamp}_{manifest.run_id}"
    try:
        make_directories(files, run_dir)
        files.make_directory(run_dir / CHECKPOINTS_DIRECTORY)
        _write_manifest(files, run_dir, manifest)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{run_dir}: cannot create the run directory: {reason}; choose another location with "
            "--telemetry-dir"
        ) from error
    return run_dir


def put_on_record(run_dir: Path, job: Job, *, files: FileSystem | None = None) -> None:
    """Update what a resume may change in a run's manifest: its number of rounds, name and tags."""
    manifest = read_manifest(run_dir)
    before = manifest.job
    training = msgspec.structs.replace(before.training, n_episodes=job.training.n_episodes)
    run = msgspec.structs.replace(
        before.run,
        name=job.run.name or before.run.name,
        tags={**before.run.tags, **job.run.tags},
    )
    after = msgspec.structs.replace(before, training=training, run=run)
    if after == before:
        return
    try:
        _write_manifest(
            files or FileSystem(), run_dir, msgspec.structs.replace(manifest, job=after)
        )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{run_dir / MANIFEST_FILE}: cannot record the new number of rounds "
            f"({job.training.n_episodes}), name or tags: {reason}"
        ) from error


def _write_manifest(files: FileSystem, run_dir: Path, manifest: RunManifest) -> None:
    write_atomically(files, run_dir / MANIFEST_FILE, readable_json(manifest))


def require_own_directories(run_dir: Path) -> None:
    """Raise ForeignFileError if a directory that a run or a sink of it writes to is a link."""
    for name in OWN_DIRECTORIES:
        require_own_directory(run_dir / name)


def traces_directory(run_dir: Path, config: ProfilerConfig) -> Path | None:
    """Return the directory of a run's torch traces; None if tracing is off."""
    return run_dir / config.torch_dir if config.torch else None


def read_manifest(run_dir: Path) -> RunManifest:
    """Read and decode `run.json`."""
    data = manifest_bytes(run_dir)
    try:
        return msgspec.json.decode(data, type=RunManifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        path = run_dir / MANIFEST_FILE
        raise UnreadableFileError(path, f"not the manifest of a run: {error}") from None


def manifest_bytes(run_dir: Path) -> bytes:
    """Read `run.json`."""
    path = run_dir / MANIFEST_FILE
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise UnreadableFileError(path, "not the manifest of a run: not a regular file")
    return read_limited(path, MAX_MANIFEST_BYTES, "manifest of a run")


def build_manifest(
    job: Job,
    *,
    command: str,
    machine_kind: str,
    data_source: str | None = None,
    contexts: tuple[ContextSpec, ...] = (),
    run_id: str | None = None,
) -> RunManifest:
    """Build the manifest of a run on this machine.

    Args:
        job: the configuration of the run.
        command: the controller that makes the decisions.
        machine_kind: machines of the same kind produce bit-identical runs; from the engine.
        data_source: where the data came from, if already known.
        contexts: those of the task.
        run_id: the id of the run; None generates one.
    """
    return RunManifest(
        run_id=run_id or new_run_id(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        esper_version=__version__,
        schema_version=SCHEMA_VERSION,
        command=command,
        contexts=contexts,
        job=_without_private_parts(job),
        versions=_package_versions(),
        commit=_source_commit(),
        cpu_model=cpu_model(),
        num_cores=os.cpu_count() or 1,
        machine_kind=machine_kind,
        data_source=data_source,
    )


def _without_private_parts(job: Job) -> Job:
    """Shorten paths to their last component; remove addresses, the token and sinks' targets."""
    run, origin = job.run, job.training.init_from
    profiler = msgspec.structs.replace(run.profiler, torch_dir=_last_part(run.profiler.torch_dir))
    return msgspec.structs.replace(
        job,
        training=msgspec.structs.replace(
            job.training, init_from=None if origin is None else _last_part(origin)
        ),
        run=msgspec.structs.replace(
            run,
            telemetry_dir=_last_part(run.telemetry_dir),
            data_dir=None if run.data_dir is None else _last_part(run.data_dir),
            save_path=None if run.save_path is None else _last_part(run.save_path),
            resume_path=None if run.resume_path is None else _last_part(run.resume_path),
            profiler=profiler,
            sinks=tuple(text.partition(":")[0] for text in run.sinks),
            serve=None,
            serve_token=None,
        ),
    )


def _last_part(path: str) -> str:
    return PurePath(path).name


def _package_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in RECORDED_PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _source_commit() -> str | None:
    # The source tree of an editable install; an installed package is in no repository.
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        result = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def cpu_model() -> str:
    """Return the processor's model name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line)
    return next(names, platform.machine())
