"""Two processes that resume one run, each held at a step of its work on the files of the run.

A step is whatever a process does with the run's files: opening one, even to read, listing a
directory, and every file operation of the run itself. One process waits before a step while the
other goes on to a step of its own, or to its end: all interleavings with up to two changes.
"""

import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tests.builders.commands import CONTEXT
from tests.builders.fingerprints import fingerprint
from tools.bench.rows import Row
from tools.soak.children import WAIT_S, Ended, resume_flags, run_child
from tools.soak.tampering import finished_run

from esper.leyline.errors import ExitCode
from esper.nissa.analysis.validation import validate_run
from esper.nissa.storage.files import FileSystem
from esper.nissa.storage.run_directory import read_manifest

QUICK_PAIRS, FULL_PAIRS = 10, 1_000
LOCK, CLOSE = "lock", "close"
BY_DESCRIPTOR = (LOCK, "write", "fsync", "truncate", CLOSE)
"""File operations that have no path; those with a path are audited by Python."""
BY_PATH = ("open", "os.rename", "os.link", "os.remove", "os.listdir", "os.scandir")
NEVER = 0


class Steps:
    """Counts the steps of this process, and waits before one of them until it may go on."""

    def __init__(self, folder: Path, hold_before: int, gate: Connection) -> None:
        self._folder = str(folder)
        self._hold_before = hold_before
        self._gate = gate
        self.names: list[str] = []

    def install(self) -> None:
        """Intercept the file operations of this process."""
        for name in BY_DESCRIPTOR:
            setattr(FileSystem, name, self._around(name, getattr(FileSystem, name)))
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in BY_PATH and str(arguments[0]).startswith(self._folder):
            self._pass_by(event)

    def _around(self, name: str, operation: Any) -> Any:
        def step(*arguments: Any) -> Any:
            self._pass_by(name)
            return operation(*arguments)

        return step

    def _pass_by(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self._hold_before:
            self._gate.send(name)
            self._gate.recv()

    def report(self) -> None:
        """Send the names of all steps."""
        self._gate.send(list(self.names))


def run_held(argv: list[str], output: Path, steps: Steps) -> None:
    """Run `esper-train` in this process, held before one step; report the steps at its end."""
    steps.install()
    try:
        run_child(argv, output, None)
    finally:
        steps.report()


class Rival:
    """One process that resumes a run."""

    def __init__(self, telemetry_dir: Path, output: Path, hold_before: int, *flags: str) -> None:
        output.unlink(missing_ok=True)
        self._output = output
        self._gate, theirs = CONTEXT.Pipe()
        steps = Steps(telemetry_dir, hold_before, theirs)
        argv = [*resume_flags(telemetry_dir), *flags]
        self._process = CONTEXT.Process(target=run_held, args=(argv, output, steps))
        self._process.start()
        theirs.close()
        self.steps: list[str] = []

    def go_on(self) -> bool:
        """Wait until the process is held, or has ended; return whether it is held."""
        assert self._gate.poll(WAIT_S), f"hangs: {self._output.read_text()}"
        message = self._gate.recv()
        if isinstance(message, str):
            return True
        self.steps = message
        return False

    def finish(self) -> Ended:
        """Let the process go on to its end."""
        if not self.steps:
            self._gate.send(None)
            assert not self.go_on(), "held twice"
        self._process.join(WAIT_S)
        assert self._process.exitcode is not None, f"hangs: {self._output.read_text()}"
        return Ended(self._process.exitcode, self._output.read_text(), None)


class Pair(NamedTuple):
    """Before which steps two processes are held; NEVER lets the second one end first."""

    first: int
    second: int = NEVER


class Contest:
    """A run without its last round, which two processes may resume."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole = finished_run(folder)
        self._expected = fingerprint(self._whole)
        self._num_rounds = read_manifest(self._whole).job.training.n_episodes
        max((self._whole / "checkpoints").glob("round-*.pt")).unlink()
        alone = Rival(self._copy(), folder / "alone.txt", NEVER)
        assert not alone.go_on()
        assert alone.finish().code == ExitCode.OK
        self.steps = alone.steps
        """What one process does that is not disturbed."""

    def _copy(self) -> Path:
        telemetry_dir = self._folder / "rivals"
        shutil.rmtree(telemetry_dir, ignore_errors=True)
        shutil.copytree(self._whole.parent, telemetry_dir)
        return telemetry_dir

    def hold(self, pair: Pair) -> int:
        """Resume the run in two processes; return how many of them did."""
        telemetry_dir = self._copy()
        rivals = []
        for number, place in enumerate(pair):
            rivals.append(Rival(telemetry_dir, self._folder / f"rival-{number}.txt", place))
            rivals[-1].go_on()
        return self._judge(pair, telemetry_dir, [rival.finish() for rival in rivals])

    def _judge(self, pair: Pair, telemetry_dir: Path, ended: list[Ended]) -> int:
        for code, text, _ in ended:
            assert code in (ExitCode.OK, ExitCode.USAGE), f"{pair}: exit code {code}: {text}"
            if code == ExitCode.USAGE:
                assert "another process is writing this log" in text, f"{pair}: {text}"
        codes = [it.code for it in ended]
        assert ExitCode.OK in codes, f"{pair}: neither resumed: {ended}"
        run_dir = telemetry_dir / self._whole.name
        found = validate_run(run_dir)
        assert found.is_valid, f"{pair}: {found.findings}"
        assert fingerprint(run_dir) == self._expected, f"{pair}: the run is another run"
        assert not list(run_dir.rglob("*.tmp")), f"{pair}: temporary files are left"
        return codes.count(ExitCode.OK)


def random_pair(rng: random.Random, num_steps: int) -> Pair:
    """Hold the first process anywhere; in half of the pairs the second one as well."""
    second = rng.randint(1, num_steps) if rng.random() < 0.5 else NEVER
    return Pair(rng.randint(1, num_steps), second)


def rows(is_quick: bool) -> Iterator[Row]:
    """Resume one run twice at once: row L16."""
    target = QUICK_PAIRS if is_quick else FULL_PAIRS
    rng, num_refused = random.Random(16), 0
    with tempfile.TemporaryDirectory() as name:
        contest = Contest(Path(name))
        for _ in range(target):
            num_refused += contest.hold(random_pair(rng, len(contest.steps))) == 1
    yield Row(
        name="L16 two processes on one run, nothing half done",
        measured=target,
        target=target,
        unit="pairs",
        is_at_least=True,
        note=f"each held before one of {len(contest.steps)} steps; {num_refused} times one was "
        "refused, else one came after the other's end",
    )
