"""Training the policies: each in a process of its own, as many at once as there are cores.

Two processes get through small networks twice as fast as two lanes of one process, which share one
interpreter; the policies are the same.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from esper.leyline.errors import ExitCode, UnreadableFileError
from esper.nissa.storage.files import FileSystem, write_atomically
from esper.nissa.storage.run_directory import CHECKPOINTS_DIRECTORY, read_manifest
from esper.simic.training.checkpoints.checkpoint_store import CheckpointStore

__all__ = ["Course", "latest_checkpoint", "num_at_once", "runs_directory", "train_all"]


class Course(NamedTuple):
    """What makes one policy."""

    preset: str
    seed: int
    policy: Path
    """Where it is kept."""
    flags: tuple[str, ...] = ()


def runs_directory(out: Path) -> Path:
    """Return where the runs are kept in which policies learn."""
    return out / "runs"


def num_at_once() -> int:
    """Return how many processes run side by side: one per core."""
    return os.cpu_count() or 1


def train_all(courses: Sequence[Course], out: Path) -> int:
    """Train the policies that are not there yet; return the first exit code that is not 0."""
    missing = [course for course in courses if not course.policy.exists()]
    num_lanes = max(num_at_once() // max(len(missing), 1), 1)
    with ThreadPoolExecutor(num_at_once()) as pool:
        futures = [pool.submit(_train, course, out, num_lanes) for course in missing]
        try:
            codes = [future.result() for future in futures]
        except KeyboardInterrupt:
            # The terminal has signalled the runs as well: each ends after a checkpoint.
            pool.shutdown(cancel_futures=True)
            return ExitCode.INTERRUPTED
    return next((code for code in codes if code), ExitCode.OK)


def _train(course: Course, out: Path, num_lanes: int) -> int:
    find = partial(latest_checkpoint, runs_directory(out), course.preset, course.seed)
    begun = find()
    code = _run_with_prefix(
        [
            *("ppo", "--preset", course.preset, "--seed", str(course.seed)),
            *("--telemetry-dir", str(runs_directory(out)), "--lanes", str(num_lanes)),
            *(() if begun is None else ("--resume", str(begun))),
            *course.flags,
        ],
        course.policy.stem,
    )
    last = find()
    if code == ExitCode.OK and last is not None:
        write_atomically(FileSystem(), course.policy, last.read_bytes())
    return code


def _run_with_prefix(arguments: Sequence[str], name: str) -> int:
    """Run `esper-train` and print its output, each line after a name."""
    command = [sys.executable, "-m", "esper.scripts.train", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(f"{name}: {line}", end="", flush=True)
    return child.returncode


def latest_checkpoint(runs: Path, preset: str, seed: int) -> Path | None:
    """Return the newest checkpoint of the newest training run under a seed."""
    for run_dir in sorted(runs.glob("*_*"), reverse=True):
        try:
            training = read_manifest(run_dir).job.training
        except UnreadableFileError:
            continue  # it was killed before it began
        checkpoint = CheckpointStore(run_dir / CHECKPOINTS_DIRECTORY).latest()
        if checkpoint is not None and (training.preset, training.seed) == (preset, seed):
            return checkpoint
    return None
