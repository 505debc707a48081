"""Signals at any moment of a run: prompt and clean exit, and resume to the same result."""

import random
import shutil
import socket
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.builders.fingerprints import fingerprint, latest_checkpoint
from tools.bench.rows import Row
from tools.soak.children import Child, Deed, Ended, Moment, only_run, resume_flags, train_flags
from tools.soak.kills import Whole, random_moment, whole_run

from esper.leyline.errors import ExitCode
from esper.nissa.analysis.validation import validate_run
from esper.nissa.storage.journal import EVENTS_FILE
from esper.simic.training.checkpoints.resuming import load_run

QUICK_STOPS, FULL_STOPS = 10, 200
DEEDS = (Deed.INTERRUPT, Deed.TERMINATE)
MAX_STOP_S = 2.0


class Stop(NamedTuple):
    """One run that was stopped by a signal."""

    seconds: float
    """From the signal to the end of the process."""
    has_resumed: bool
    """Whether it was resumed, with the same result."""


def free_port() -> int:
    """Return a free local port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def random_stop(rng: random.Random, whole: Whole) -> Moment:
    """Draw a moment and one of the two signals."""
    return random_moment(rng, whole, rng.choice(DEEDS))


def stop_and_look(folder: Path, moment: Moment, whole: Whole, *, resumes: bool) -> Stop | None:
    """Stop one run and check everything it leaves; None if it had already ended."""
    telemetry_dir = folder / "stopped"
    shutil.rmtree(telemetry_dir, ignore_errors=True)
    port = free_port()
    flags = train_flags(telemetry_dir, "--serve", f"127.0.0.1:{port}")
    ended = Child(flags, folder / "stopped.txt", moment).wait()
    if ended.seconds_after_deed is None:
        return None
    assert "Traceback" not in ended.output, ended.output
    run_dir = only_run(telemetry_dir)
    is_complete = run_dir is not None and _is_complete(run_dir)
    # A signal that comes when all is done finds nothing to stop.
    expected = ExitCode.OK if is_complete else ExitCode.INTERRUPTED
    assert ended.code == expected, f"{moment}: exit code {ended.code}: {ended.output}"
    if run_dir is not None:
        _check_left(run_dir, ended)
    # The port must be free again.
    socket.create_server(("127.0.0.1", port)).close()
    return Stop(
        seconds=ended.seconds_after_deed,
        has_resumed=resumes and run_dir is not None and _resumes_to(whole, telemetry_dir),
    )


def _is_complete(run_dir: Path) -> bool:
    return b'"status":"completed"' in (run_dir / EVENTS_FILE).read_bytes()


def _check_left(run_dir: Path, ended: Ended) -> None:
    checkpoint = latest_checkpoint(run_dir)
    assert checkpoint is not None
    load_run(checkpoint)
    found = validate_run(run_dir)
    assert found.is_valid, f"{found.findings}\n{ended.output}"
    assert found.num_uncovered_bytes == 0
    left = [path.name for path in run_dir.rglob("*.tmp")]
    assert not left, f"left behind: {left}"


def _resumes_to(whole: Whole, telemetry_dir: Path) -> bool:
    ended = Child(resume_flags(telemetry_dir), telemetry_dir.with_suffix(".txt")).wait()
    assert ended.code == ExitCode.OK, ended.output
    run_dir = only_run(telemetry_dir)
    assert run_dir is not None
    assert fingerprint(run_dir) == whole.fingerprint, "the resumed run is another run"
    return True


def rows(is_quick: bool) -> Iterator[Row]:
    """Stop, check, resume: row L5."""
    target = QUICK_STOPS if is_quick else FULL_STOPS
    rng = random.Random(5)
    stops: list[Stop] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = whole_run(folder)
        while len(stops) < target:
            stop = stop_and_look(folder, random_stop(rng, whole), whole, resumes=not is_quick)
            stops += [] if stop is None else [stop]
    num_resumed = sum(stop.has_resumed for stop in stops)
    yield Row(
        name="L5 stopped by a signal, clean exit",
        measured=len(stops),
        target=target,
        unit="stops",
        is_at_least=True,
        note=f"SIGINT and SIGTERM; {num_resumed} resumed to the same hash",
    )
    seconds = sorted(stop.seconds for stop in stops)
    yield Row(
        name="L5 signal to exit, slowest",
        measured=seconds[-1],
        target=MAX_STOP_S,
        unit="s",
        note=f"median {statistics.median(seconds):.2f} s",
    )
