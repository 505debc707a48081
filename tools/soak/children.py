"""`esper-train` in processes that may be killed, forked from one that has torch loaded already."""

import errno
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from tests.builders.commands import CONTEXT
from tests.builders.tiny_tasks import TINY, register_tiny_tasks

from esper.nissa.storage.files import FileSystem
from esper.scripts.train import main
from esper.tolaria.stopping import StopFlag

WAIT_S = 600.0


class Site(StrEnum):
    """Where in a run something may happen."""

    POINT = "point"
    """A cancellation point: between batches, between minibatches of an update."""
    FILE = "file"
    """A file operation; a write is torn in its middle."""


class Deed(StrEnum):
    """What happens there."""

    KILL = "kill"
    INTERRUPT = "interrupt"
    TERMINATE = "terminate"
    SUSPEND = "suspend"
    """The process suspends itself (SIGSTOP)."""
    HANG = "hang"
    """The thread hangs."""
    NO_SPACE = "no space"
    """The disk is full from then on."""
    IO_ERROR = "io error"
    """The disk fails once."""


SIGNALS = {
    Deed.KILL: signal.SIGKILL,
    Deed.INTERRUPT: signal.SIGINT,
    Deed.TERMINATE: signal.SIGTERM,
    Deed.SUSPEND: signal.SIGSTOP,
}


class Moment(NamedTuple):
    """The n-th time that a run reaches a site, and what happens then."""

    site: Site
    index: int
    deed: Deed


@dataclass(eq=False, slots=True)
class Tripwire:
    """Counts how often a run reaches each site, and injects the fault at the given moment."""

    moment: Moment | None
    noted_path: Path
    counts: dict[Site, int] = field(default_factory=lambda: dict.fromkeys(Site, 0))

    def install(self) -> None:
        """Intercept the cancellation points and file operations of this process."""
        wire, check, write = self, StopFlag.checkpoint, FileSystem.write

        def checkpoint(flag: StopFlag) -> None:
            wire.pass_by(Site.POINT)
            check(flag)

        def torn_write(files: FileSystem, descriptor: int, data: bytes) -> None:
            half = len(data) // 2
            write(files, descriptor, data[:half])
            wire.pass_by(Site.FILE)
            write(files, descriptor, data[half:])

        StopFlag.checkpoint = checkpoint  # type: ignore[method-assign]
        FileSystem.write = torn_write  # type: ignore[method-assign]
        for name in ("fsync", "truncate", "rename", "link", "fsync_directory"):
            setattr(FileSystem, name, self._around(getattr(FileSystem, name)))

    def pass_by(self, site: Site) -> None:
        """Count, and inject the fault at the given moment."""
        self.counts[site] += 1
        moment = self.moment
        if moment is None or site is not moment.site or self.counts[site] < moment.index:
            return
        is_first = self.counts[site] == moment.index
        if is_first:
            self.noted_path.write_text(repr(time.time()))
        if is_first or moment.deed is Deed.NO_SPACE:
            _do(moment.deed)

    def _around(self, operation: Any) -> Any:
        def passing(*arguments: Any) -> Any:
            self.pass_by(Site.FILE)
            return operation(*arguments)

        return passing


def _do(deed: Deed) -> None:
    match deed:
        case Deed.HANG:
            threading.Event().wait()
        case Deed.NO_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case Deed.IO_ERROR:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        case _:
            os.kill(os.getpid(), SIGNALS[deed])


def run_child(argv: list[str], output: Path, moment: Moment | None) -> None:
    """Run `esper-train` in this process; write its output and the counts of sites to files."""
    with output.open("ab") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    register_tiny_tasks()
    wire = Tripwire(moment, output.with_suffix(".noted"))
    wire.install()
    code = main(argv)
    output.with_suffix(".counts").write_text(json.dumps(wire.counts))
    sys.stdout.flush()
    sys.exit(code)


class Ended(NamedTuple):
    """How a child ended."""

    code: int
    """The exit code; negative for the signal that ended it."""
    output: str
    seconds_after_deed: float | None
    """None if the moment was never reached."""


class Child:
    """One process that trains."""

    def __init__(self, argv: list[str], output: Path, moment: Moment | None = None) -> None:
        self._output = output
        for stale in (output, output.with_suffix(".noted")):
            stale.unlink(missing_ok=True)
        self._process = CONTEXT.Process(target=run_child, args=(argv, output, moment))
        self._process.start()

    def wake_after(self, seconds: float) -> None:
        """Resume a process this long after it suspended itself."""
        status = Path(f"/proc/{self._process.pid}/stat")
        deadline_s = time.monotonic() + WAIT_S
        while status.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline_s, "the process has not suspended itself"
            time.sleep(0.05)
        time.sleep(seconds)
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def wait(self) -> Ended:
        """Wait for its end; kill it after a timeout."""
        self._process.join(WAIT_S)
        ended_s = time.time()
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        reported = self._output.with_suffix(".noted")
        after_s = ended_s - float(reported.read_text()) if reported.exists() else None
        code = self._process.exitcode
        assert code is not None
        text = self._output.read_text(errors="replace") if self._output.exists() else ""
        return Ended(code, text, after_s)


def counts_of(output: Path) -> dict[Site, int]:
    """Return how often a finished child reached each site."""
    counts: dict[str, int] = json.loads(output.with_suffix(".counts").read_text())
    return {Site(name): count for name, count in counts.items()}


def train_flags(telemetry_dir: Path, *more: str) -> list[str]:
    """Return the command line of a tiny run."""
    where = ["--telemetry-dir", str(telemetry_dir), "--quiet"]
    return ["ppo", "--task", TINY, "--lanes", "2", *where, *more]


def resume_flags(telemetry_dir: Path) -> list[str]:
    """Return the command line that resumes the run in a directory."""
    return ["ppo", "--resume", "latest", "--telemetry-dir", str(telemetry_dir), "--quiet"]


def only_run(telemetry_dir: Path) -> Path | None:
    """Return the run in a directory that has a checkpoint to resume from, or None."""
    found = [path for path in telemetry_dir.glob("*_*") if any(path.glob("checkpoints/round-*.pt"))]
    assert len(found) <= 1, f"{telemetry_dir} holds {len(found)} runs"
    return found[0] if found else None
