"""Somebody else changes the files of a run: noticed, and nothing of others is touched."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tools.bench.rows import Row
from tools.soak.children import Child, Ended, resume_flags, train_flags

from esper.leyline.errors import ExitCode
from esper.nissa.storage.journal import EVENTS_FILE, OPERATIONAL_FILE

QUICK_REPEATS, FULL_REPEATS = 1, 5
WAIT_S = 600.0
CHECKSUMS_FILE = "events.crc"
FILES = (EVENTS_FILE, CHECKSUMS_FILE, OPERATIONAL_FILE)
VICTIM = b"somebody else's file\n" * 100


def truncate(path: Path, _: Path) -> None:
    """Cut the file to half of its size."""
    os.truncate(path, path.stat().st_size // 2)


def append(path: Path, _: Path) -> None:
    """Append a line of somebody else's."""
    with path.open("ab") as file:
        file.write(b'{"event_type":"FOREIGN"}\n')


def replace(path: Path, _: Path) -> None:
    """Put a copy in the place of the file."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def unlink(path: Path, _: Path) -> None:
    """Remove the file."""
    path.unlink()


def symlink(path: Path, victim: Path) -> None:
    """Put a symbolic link to another file in its place."""
    path.unlink()
    path.symlink_to(victim)


def hard_link(path: Path, victim: Path) -> None:
    """Put another name of another file in its place."""
    path.unlink()
    path.hardlink_to(victim)


def pipe(path: Path, _: Path) -> None:
    """Put a named pipe in its place."""
    path.unlink()
    os.mkfifo(path)


Deed = Callable[[Path, Path], None]
DEEDS_WHILE_WRITING: tuple[Deed, ...] = (truncate, append, replace, unlink, symlink)
DEEDS_BEFORE_RESUME: tuple[Deed, ...] = (symlink, hard_link, pipe)


class Case(NamedTuple):
    """One file that somebody changes, and how."""

    name: str
    deed: Deed

    def __str__(self) -> str:
        return f"{self.deed.__name__} {self.name}"


def _victim(folder: Path) -> Path:
    path = folder / "victim"
    path.write_bytes(VICTIM)
    return path


def tamper_while_writing(folder: Path, case: Case) -> Ended:
    """Change a file of a running run; check that it ends with exit code 3 and one sentence."""
    telemetry_dir = folder / "changed"
    shutil.rmtree(telemetry_dir, ignore_errors=True)
    victim = _victim(folder)
    child = Child(train_flags(telemetry_dir, "--rounds", "12"), folder / "changed.txt")
    run_dir = _wait_for_events(telemetry_dir)
    # An operational log is often empty, and half of nothing would be no change.
    if case.deed is truncate and case.name == OPERATIONAL_FILE:
        append(run_dir / case.name, victim)
    else:
        case.deed(run_dir / case.name, victim)
    ended = child.wait()
    assert ended.code == ExitCode.TELEMETRY_INCOMPLETE, f"{case}: {ended}"
    assert ended.output.count("\n") == 1, f"{case}: {ended.output}"
    assert case.name in ended.output, f"{case}: {ended.output}"
    assert victim.read_bytes() == VICTIM, f"{case}: the file of somebody else was changed"
    return ended


def _wait_for_events(telemetry_dir: Path) -> Path:
    deadline_s = time.monotonic() + WAIT_S
    while True:
        for run_dir in telemetry_dir.glob("*_*"):
            log = run_dir / CHECKSUMS_FILE
            if log.exists() and log.stat().st_size > 0 and (run_dir / OPERATIONAL_FILE).exists():
                return run_dir
        assert time.monotonic() < deadline_s, "the run has written nothing"
        time.sleep(0.01)


def tamper_before_resume(folder: Path, whole: Path, case: Case) -> Ended:
    """Put a link into a finished run; check that resuming it is refused, and changes nothing."""
    telemetry_dir = folder / "linked"
    shutil.rmtree(telemetry_dir, ignore_errors=True)
    shutil.copytree(whole.parent, telemetry_dir)
    run_dir = telemetry_dir / whole.name
    # As good a log as the run's own, so that nothing but the link is wrong with it.
    victim = folder / "victim"
    shutil.copyfile(run_dir / case.name, victim)
    others = victim.read_bytes()
    case.deed(run_dir / case.name, victim)
    before = contents_of(run_dir)
    ended = Child(resume_flags(telemetry_dir), folder / "linked.txt").wait()
    assert ended.code == ExitCode.USAGE, f"{case}: {ended}"
    assert ended.output.count("\n") == 1, f"{case}: {ended.output}"
    assert str(run_dir / case.name) in ended.output, f"{case}: {ended.output}"
    assert victim.read_bytes() == others, f"{case}: the file of somebody else was changed"
    assert contents_of(run_dir) == before, f"{case}: the run was changed"
    return ended


def contents_of(run_dir: Path) -> dict[str, bytes]:
    """Return every regular file of a run, links not followed."""
    found = (path for path in run_dir.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in found}


def finished_run(folder: Path) -> Path:
    """Run once without a change; return the directory of the run."""
    ended = Child(train_flags(folder / "whole"), folder / "whole.txt").wait()
    assert ended.code == ExitCode.OK, ended.output
    [run_dir] = (folder / "whole").glob("*_*")
    return run_dir


def rows(is_quick: bool) -> Iterator[Row]:
    """Change files of runs as somebody else would: row L14."""
    num_repeats = QUICK_REPEATS if is_quick else FULL_REPEATS
    num_noticed = num_refused = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = finished_run(folder)
        for _ in range(num_repeats):
            for file in FILES:
                for deed in DEEDS_WHILE_WRITING:
                    tamper_while_writing(folder, Case(file, deed))
                    num_noticed += 1
                for deed in DEEDS_BEFORE_RESUME:
                    tamper_before_resume(folder, whole, Case(file, deed))
                    num_refused += 1
    for what, number in (("while a run writes, noticed", num_noticed), ("resume", num_refused)):
        yield Row(
            name=f"L14 files changed by others: {what}",
            measured=number,
            target=number,
            unit="changes",
            is_at_least=True,
            note="truncated, appended to, replaced, removed, linked; nothing of others touched",
        )
