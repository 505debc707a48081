"""Crashes between any two file operations of a run: the files must be recoverable."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.builders.fingerprints import latest_checkpoint
from tests.builders.tiny_runs import short_run
from tests.builders.tiny_tasks import TINY
from tools.bench.rows import Row

from esper.nissa.storage.files import FileSystem
from esper.nissa.storage.journal import (
    EVENTS_FILE,
    apply_cut,
    claim_run,
    open_journal,
    plan_cut,
)
from esper.nissa.storage.run_directory import MANIFEST_FILE
from esper.simic.training.checkpoints.checkpoint_store import read_checkpoint
from esper.simic.training.checkpoints.resuming import load_run

QUICK_STRIDE = 4
"""The quick form checks every fourth prefix."""


class Operation(NamedTuple):
    """One file operation."""

    name: str
    path: Path
    data: bytes = b""
    """The bytes to write."""
    number: int = 0
    """The flags of an open, or the length of a truncation."""
    target: Path | None = None
    """The new name of a rename or link."""


@dataclass(eq=False, slots=True)
class Recorder:
    """Records a run's file operations in order."""

    operations: list[Operation] = field(default_factory=list)
    _paths: dict[int, Path] = field(default_factory=dict)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Intercept every file system object of this process."""
        real = {name: getattr(FileSystem, name) for name in _RECORDED}
        with ExitStack() as patches:
            for name, call in real.items():
                patches.enter_context(mock.patch.object(FileSystem, name, self._around(name, call)))
            yield

    def _around(self, name: str, call: Any) -> Any:
        def recorded(files: FileSystem, *arguments: Any) -> Any:
            result = call(files, *arguments)
            self._note(name, arguments, result)
            return result

        return recorded

    def _note(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        first, *rest = arguments
        path = first if isinstance(first, Path) else self._paths[first]
        match name:
            case "open":
                self._paths[result] = path
                self.operations.append(Operation(name, path, number=rest[0]))
            case "write":
                self.operations.append(Operation(name, path, data=bytes(rest[0])))
            case "truncate":
                self.operations.append(Operation(name, path, number=rest[0]))
            case "rename" | "link":
                self.operations.append(Operation(name, path, target=rest[0]))
            case _:
                self.operations.append(Operation(name, path))


_RECORDED = (
    *("open", "write", "fsync", "truncate", "rename", "link", "remove"),
    *("make_directory", "fsync_directory"),
)


class Crash(StrEnum):
    """Which of the last writes reach the disk."""

    WHOLE = "everything that was done"
    TORN = "half of the last write"
    UNSYNCED = "nothing that was not forced to it"


@dataclass(eq=False, slots=True)
class Disk:
    """The files after some operations: their contents, and which part of it is synced."""

    directories: set[Path] = field(default_factory=set)
    files: dict[Path, bytes] = field(default_factory=dict)
    synced: dict[Path, bytes] = field(default_factory=dict)

    def do(self, operation: Operation) -> None:
        """Apply one operation."""
        path = operation.path
        match operation.name:
            case "make_directory":
                self.directories.add(path)
            case "open" if path not in self.files or operation.number & os.O_TRUNC:
                self.files[path] = b""
                self.synced[path] = b""
            case "write":
                self.files[path] += operation.data
            case "truncate":
                self.files[path] = self.files[path][: operation.number]
            case "fsync":
                self.synced[path] = self.files[path]
            case "rename":
                assert operation.target is not None
                self.files[operation.target] = self.files.pop(path)
                self.synced[operation.target] = self.synced.pop(path)
            case "link":
                assert operation.target is not None
                self.files[operation.target] = self.files[path]
                self.synced[operation.target] = self.synced[path]
            case "remove":
                self.files.pop(path, None)
                self.synced.pop(path, None)

    def write_to(self, folder: Path, root: Path, crash: Crash) -> None:
        """Write the files that a crash leaves to another folder."""
        for directory in self.directories:
            (folder / directory.relative_to(root)).mkdir(parents=True, exist_ok=True)
        contents = self.synced if crash is Crash.UNSYNCED else self.files
        for path, data in contents.items():
            (folder / path.relative_to(root)).write_bytes(data)


class Trace(NamedTuple):
    """A run's file operations and its final files."""

    run_dir: Path
    operations: list[Operation]
    lines: list[bytes]


def record_run(folder: Path) -> Trace:
    """Record a whole run of several rounds, including the removal of old checkpoints."""
    recorder = Recorder()
    with recorder.recording():
        run_dir = short_run(
            folder, TINY, lanes=2, n_envs=2, n_episodes=5, max_epochs=2, run={"fsync": "round"}
        )
    return Trace(run_dir, recorder.operations, (run_dir / EVENTS_FILE).read_bytes().splitlines())


def crashes(trace: Trace, stride: int) -> Iterator[tuple[Disk, Crash]]:
    """Yield the disk after each prefix of the trace, in each of the three ways to crash."""
    disk = Disk()
    for index, operation in enumerate(trace.operations):
        is_due = index % stride == 0
        if is_due and operation.name == "write":
            before = disk.files[operation.path]
            disk.files[operation.path] += operation.data[: len(operation.data) // 2]
            yield disk, Crash.TORN
            disk.files[operation.path] = before
        disk.do(operation)
        if is_due:
            yield disk, Crash.WHOLE
            yield disk, Crash.UNSYNCED


def check_opens(run_dir: Path, trace: Trace) -> None:
    """Assert that the files recover to a state that the run was in."""
    if not (run_dir / EVENTS_FILE).exists():
        return
    journal = open_journal(run_dir / EVENTS_FILE, files=FileSystem(), has_checksums=True)
    journal.close()
    found = (run_dir / EVENTS_FILE).read_bytes().splitlines()
    assert found == trace.lines[: len(found)], "an event that was not written"
    for path in run_dir.glob("checkpoints/*.pt"):
        read_checkpoint(path)
    checkpoint = latest_checkpoint(run_dir)
    if checkpoint is None:
        return
    header = load_run(checkpoint).header
    assert header.log_seq < len(found), "a checkpoint that is ahead of its log"
    claim = claim_run(run_dir)
    apply_cut(claim, plan_cut(claim.path, header.log_seq))
    claim.close()
    assert (run_dir / EVENTS_FILE).read_bytes().splitlines() == found[: header.log_seq + 1]


def check_all(folder: Path, trace: Trace, stride: int) -> int:
    """Simulate every crash; return their number."""
    root = trace.run_dir.parent
    num_crashes = 0
    for disk, crash in crashes(trace, stride):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            disk.write_to(Path(name), root, crash)
            run_dir = Path(name) / trace.run_dir.name
            if (run_dir / MANIFEST_FILE).exists():
                check_opens(run_dir, trace)
        num_crashes += 1
    return num_crashes


def rows(is_quick: bool) -> Iterator[Row]:
    """Crash between any two file operations: row L3."""
    with tempfile.TemporaryDirectory() as name:
        trace = record_run(Path(name))
        num_crashes = check_all(Path(name), trace, QUICK_STRIDE if is_quick else 1)
    yield Row(
        name="L3 crashes that recover a valid state",
        measured=num_crashes,
        target=num_crashes,
        unit="crashes",
        is_at_least=True,
        note=f"{len(trace.operations)} file operations; completed, torn, or unsynced data lost",
    )
