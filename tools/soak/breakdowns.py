"""Disk failures and hanging threads: reported in one sentence, without loss of saved data."""

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.builders.fingerprints import fingerprint
from tools.bench.rows import Row
from tools.soak.children import Child, Deed, Moment, Site, only_run, resume_flags, train_flags
from tools.soak.kills import Whole, whole_run

from esper.leyline.errors import ExitCode
from esper.leyline.telemetry import EventType
from esper.nissa.storage.journal import OPERATIONAL_FILE

LANE_DEADLINE_S = 1.0
FAILURE_CODES = (ExitCode.TELEMETRY_INCOMPLETE, ExitCode.FAILED, ExitCode.USAGE)
"""For a log or checkpoint that cannot be written, or a directory that cannot be created."""
DISK_DEEDS = (Deed.NO_SPACE, Deed.IO_ERROR)
FULL_HANGS = 20


def fail_disk(folder: Path, moment: Moment, whole: Whole) -> None:
    """Let the disk fail once or permanently, then resume the run on a working disk."""
    telemetry_dir = folder / "failed"
    shutil.rmtree(telemetry_dir, ignore_errors=True)
    ended = Child(train_flags(telemetry_dir), folder / "failed.txt", moment).wait()
    summary = f"{moment}: exit code {ended.code}: {ended.output}"
    assert ended.seconds_after_deed is not None, summary
    assert ended.code in FAILURE_CODES, summary
    assert "Traceback" not in ended.output, summary
    assert ended.output.count("\n") == 1, summary
    run_dir = only_run(telemetry_dir) if telemetry_dir.exists() else None
    if run_dir is not None:
        ended = Child(resume_flags(telemetry_dir), folder / "failed.txt").wait()
        assert ended.code == ExitCode.OK, f"{moment}: {ended.output}"
        assert fingerprint(run_dir) == whole.fingerprint, f"{moment}: another run"


def hang(folder: Path, moment: Moment) -> float:
    """Let a thread hang; return the seconds until the process exits."""
    telemetry_dir = folder / "hung"
    shutil.rmtree(telemetry_dir, ignore_errors=True)
    flags = train_flags(telemetry_dir, "--lane-deadline", str(LANE_DEADLINE_S))
    ended = Child(flags, folder / "hung.txt", moment).wait()
    assert ended.code == ExitCode.FAILED, f"{moment}: exit code {ended.code}: {ended.output}"
    assert "Traceback" not in ended.output, ended.output
    assert ended.seconds_after_deed is not None
    run_dir = only_run(telemetry_dir)
    assert run_dir is not None
    lines = (run_dir / OPERATIONAL_FILE).read_bytes().splitlines()
    stalls = [event for line in lines if _is_stall(event := msgspec.json.decode(line))]
    assert len(stalls) == 1, f"{len(stalls)} stalls were reported"
    assert "_do" in stalls[0]["data"]["stack"], "the stack does not show where it hangs"
    return ended.seconds_after_deed


def _is_stall(event: dict[str, object]) -> bool:
    return event["event_type"] == EventType.LANE_STALLED


def rows(is_quick: bool) -> Iterator[Row]:
    """Fail at every file operation of a run, and hang at some of its moments: part of row L6."""
    rng = random.Random(7)
    num_failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = whole_run(folder)
        # Threads group what they write, so the last operations may not come in every run.
        last = whole.counts[Site.FILE] * 3 // 4
        indices = rng.sample(range(1, last), 5) if is_quick else range(1, last)
        for deed in DISK_DEEDS:
            for index in indices:
                fail_disk(folder, Moment(Site.FILE, index, deed), whole)
                num_failures += 1
        yield Row(
            name="L6 disk failures reported, resumed and equal",
            measured=num_failures,
            target=num_failures,
            unit="failures",
            is_at_least=True,
            note=f"ENOSPC and EIO at {len(indices)} file operations of a run",
        )
        num_hangs = 2 if is_quick else FULL_HANGS
        points = [rng.randint(2, whole.counts[Site.POINT] // 2) for _ in range(num_hangs)]
        slowest_s = max(hang(folder, Moment(Site.POINT, index, Deed.HANG)) for index in points)
    yield Row(
        name="L6 hang to exit, slowest",
        measured=slowest_s,
        target=2 * LANE_DEADLINE_S + 5.0,
        unit="s",
        note=f"{num_hangs} hangs, --lane-deadline {LANE_DEADLINE_S:g} s, exit code 1, stack shown",
    )
