"""Crashes on a disk that keeps only what was forced to it, names included, in any order.

A file's data are on disk after its fsync, a directory's entries after the fsync of the directory.
Anything else may or may not have reached the disk, each operation on its own.
"""

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.builders.fingerprints import latest_checkpoint
from tests.builders.tiny_runs import short_run
from tests.builders.tiny_tasks import TINY
from tools.bench.rows import Row
from tools.soak.traces import Operation, Recorder

from esper.nissa.storage.files import FileSystem
from esper.nissa.storage.journal import EVENTS_FILE, open_journal, plan_cut
from esper.nissa.storage.run_directory import MANIFEST_FILE
from esper.simic.training.checkpoints.checkpoint_store import read_checkpoint
from esper.simic.training.checkpoints.log_agreement import check_agreement
from esper.simic.training.checkpoints.resuming import load_run, resolve_job
from esper.simic.training.vectorized import run_job

QUICK_STRIDE = 9
QUICK_STATES, FULL_STATES = 2, 6
"""Random states per crash, besides the extreme ones."""


@dataclass(eq=False, slots=True)
class Inode:
    """A file: what is surely on disk, and the contents that it had since."""

    synced: bytes = b""
    later: list[bytes] = field(default_factory=list)

    @property
    def current(self) -> bytes:
        """Return the contents that a process sees."""
        return self.later[-1] if self.later else self.synced


class Entry(NamedTuple):
    """A change of a directory: a name gets a file, a directory (None) or nothing."""

    path: Path
    target: Inode | None
    is_removed: bool = False


@dataclass(eq=False, slots=True)
class VolatileDisk:
    """Names and files after some operations, and which changes of names are not on disk yet."""

    names: dict[Path, Inode | None] = field(default_factory=dict)
    durable: dict[Path, Inode | None] = field(default_factory=dict)
    pending: list[Entry] = field(default_factory=list)

    def do(self, operation: Operation) -> None:
        """Apply one operation."""
        path, target = operation.path, operation.target
        match operation.name:
            case "make_directory":
                self._enter(path, None)
            case "open" if path not in self.names:
                self._enter(path, Inode())
            case "write":
                self._file(path).later.append(self._file(path).current + operation.data)
            case "truncate":
                self._file(path).later.append(self._file(path).current[: operation.number])
            case "fsync":
                inode = self._file(path)
                inode.synced, inode.later = inode.current, []
            case "rename" | "link":
                assert target is not None
                self._enter(target, self._file(path))
                if operation.name == "rename":
                    self._leave(path)
            case "remove" if path in self.names:
                self._leave(path)
            case "fsync_directory":
                for entry in [item for item in self.pending if item.path.parent == path]:
                    _apply(self.durable, entry)
                    self.pending.remove(entry)

    def _file(self, path: Path) -> Inode:
        inode = self.names[path]
        assert inode is not None, f"{path} is a directory"
        return inode

    def _enter(self, path: Path, target: Inode | None) -> None:
        self.names[path] = target
        self.pending.append(Entry(path, target))

    def _leave(self, path: Path) -> None:
        del self.names[path]
        self.pending.append(Entry(path, None, is_removed=True))

    def states(self, rng: random.Random, num_random: int) -> Iterator[dict[Path, bytes | None]]:
        """Yield what a crash may leave: extremes of names and data, then random choices."""
        for names_share, data_share in ((0, 0), (0, 1), (1, 0), (1, 1)):
            yield self._state(rng, names_share, data_share)
        for _ in range(num_random):
            yield self._state(rng, rng.random(), rng.random())

    def _state(
        self, rng: random.Random, names_share: float, data_share: float
    ) -> dict[Path, bytes | None]:
        names = dict(self.durable)
        for entry in self.pending:
            if rng.random() < names_share:
                _apply(names, entry)
        return {
            path: None if inode is None else _contents(inode, rng, data_share)
            for path, inode in names.items()
        }


def _apply(names: dict[Path, Inode | None], entry: Entry) -> None:
    if entry.is_removed:
        names.pop(entry.path, None)
    else:
        names[entry.path] = entry.target


def _contents(inode: Inode, rng: random.Random, share: float) -> bytes:
    if not inode.later or rng.random() >= share:
        return inode.synced
    return inode.later[-1] if share == 1 else rng.choice(inode.later)


def record_run_and_resume(folder: Path) -> tuple[Path, list[Operation]]:
    """Record a run of several rounds, and a resume from one of its earlier checkpoints."""
    recorder = Recorder()
    with recorder.recording():
        run_dir = short_run(
            folder / "runs", TINY, lanes=2, n_envs=1, n_episodes=4, max_epochs=1,
            run={"fsync": "round"},
        )  # fmt: skip
        earlier = min((run_dir / "checkpoints").glob("round-*.pt"))
        layer = {"run": {"resume_path": str(earlier), "telemetry_dir": str(folder / "runs")}}
        job, resumed = resolve_job([("soak", layer)])
        run_job(job, resumed=resumed)
    return run_dir, recorder.operations


def write_state(state: dict[Path, bytes | None], root: Path, folder: Path) -> None:
    """Write a state of the disk, without the files whose directory has no name."""
    for path in sorted(state):
        place, data = folder / path.relative_to(root), state[path]
        if place.parent.is_dir():
            place.mkdir() if data is None else place.write_bytes(data)


def check_state(run_dir: Path, *, has_checkpoint: bool) -> None:
    """Assert that the run opens, and that its latest checkpoint can be resumed from its log.

    Args:
        run_dir: the run.
        has_checkpoint: whether one was on disk before, so that there must be one.
    """
    assert not has_checkpoint or (run_dir / MANIFEST_FILE).exists(), "the run is lost"
    if not (run_dir / MANIFEST_FILE).exists():
        return
    for path in run_dir.glob("checkpoints/*.pt"):
        read_checkpoint(path)
    checkpoint = latest_checkpoint(run_dir)
    log = run_dir / EVENTS_FILE
    if checkpoint is None:
        assert not has_checkpoint, "all checkpoints are lost"
        return
    header = load_run(checkpoint).header
    check_agreement(checkpoint, header, log, plan_cut(log, header.log_seq))
    open_journal(log, files=FileSystem(), has_checksums=True).close()


def check_all(
    folder: Path,
    run_dir: Path,
    operations: list[Operation],
    stride: int,
    num_random: int,
    start: int = 0,
) -> int:
    """Check states of the disk after prefixes of the operations; return their number."""
    disk, rng, root, num_states = VolatileDisk(), random.Random(15), run_dir.parent.parent, 0
    has_checkpoint = False
    for index, operation in enumerate(operations):
        disk.do(operation)
        has_checkpoint |= any(path.match("checkpoints/round-*.pt") for path in disk.durable)
        if index < start or index % stride:
            continue
        for state in disk.states(rng, num_random):
            with tempfile.TemporaryDirectory(dir=folder) as name:
                write_state(state, root, Path(name))
                place = Path(name) / run_dir.relative_to(root)
                check_state(place, has_checkpoint=has_checkpoint)
            num_states += 1
    return num_states


def rows(is_quick: bool) -> Iterator[Row]:
    """Crash on a disk with volatile names and reordered operations: row L15."""
    stride, num_random = (QUICK_STRIDE, QUICK_STATES) if is_quick else (1, FULL_STATES)
    with tempfile.TemporaryDirectory() as name:
        run_dir, operations = record_run_and_resume(Path(name))
        num_states = check_all(Path(name), run_dir, operations, stride, num_random)
    yield Row(
        name="L15 crash states with volatile names, all open",
        measured=num_states,
        target=num_states,
        unit="states",
        is_at_least=True,
        note=f"{len(operations)} file operations of a run and its resume; names and data reach "
        "the disk in any order",
    )
