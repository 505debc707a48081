"""Kills runs at any moment, resumes them, and compares them with an uninterrupted one."""

import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from tests.builders.fingerprints import fingerprint
from tools.bench.rows import Row
from tools.soak.children import (
    Child,
    Deed,
    Moment,
    Site,
    counts_of,
    only_run,
    resume_flags,
    train_flags,
)

from esper.nissa.analysis.validation import validate_run

QUICK_KILLS, FULL_KILLS = 10, 200
MAX_KILLS_PER_RUN = 4


class Whole(NamedTuple):
    """The uninterrupted run."""

    fingerprint: str
    counts: dict[Site, int]
    """How often it reached each site where it might have been killed."""


def whole_run(folder: Path) -> Whole:
    """Run once without a fault."""
    output = folder / "whole.txt"
    ended = Child(train_flags(folder / "whole"), output).wait()
    assert ended.code == 0, ended.output
    run_dir = only_run(folder / "whole")
    assert run_dir is not None
    assert validate_run(run_dir).is_valid
    return Whole(fingerprint(run_dir), counts_of(output))


def random_moment(rng: random.Random, whole: Whole, deed: Deed) -> Moment:
    """Draw a moment of a run; half of them in the middle of a file operation."""
    site = rng.choice(list(Site))
    return Moment(site, rng.randint(1, whole.counts[site]), deed)


def kill_and_resume(folder: Path, rng: random.Random, whole: Whole, num_kills: int) -> int:
    """Kill one run several times, let it finish, compare; return the number of actual kills."""
    telemetry_dir = folder / "killed"
    shutil.rmtree(telemetry_dir, ignore_errors=True)
    num_killed = 0
    for _ in range(num_kills):
        ended = _go_on(telemetry_dir, random_moment(rng, whole, Deed.KILL))
        assert ended in (0, -signal.SIGKILL), f"exit code {ended}"
        num_killed += ended != 0
        if ended == 0:
            break
    code = _go_on(telemetry_dir, None)
    assert code == 0, f"exit code {code}"
    run_dir = only_run(telemetry_dir)
    assert run_dir is not None
    found = validate_run(run_dir)
    assert found.is_valid, found.findings
    assert fingerprint(run_dir) == whole.fingerprint, "the resumed run is another run"
    _check_redone(run_dir)
    return num_killed


def _go_on(telemetry_dir: Path, moment: Moment | None) -> int:
    has_begun = telemetry_dir.exists() and only_run(telemetry_dir) is not None
    if not has_begun:
        # Killed before its first checkpoint there is nothing to go on from.
        shutil.rmtree(telemetry_dir, ignore_errors=True)
    flags = resume_flags(telemetry_dir) if has_begun else train_flags(telemetry_dir)
    ended = Child(flags, telemetry_dir.with_suffix(".txt"), moment).wait()
    assert ended.code in (0, -signal.SIGKILL), ended.output
    return ended.code


def _check_redone(run_dir: Path) -> None:
    """Assert that each resume repeated at most one round."""
    for path in run_dir.glob("events.redone-*.jsonl"):
        events = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
        rounds = {event["round"] for event in events} - {None}
        assert len(rounds) <= 1, f"{path.name} holds rounds {sorted(rounds)}"


def rows(is_quick: bool) -> Iterator[Row]:
    """Kill, resume, compare: row L1."""
    target = QUICK_KILLS if is_quick else FULL_KILLS
    rng = random.Random(1)
    num_kills = num_runs = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = whole_run(folder)
        while num_kills < target:
            wanted = min(rng.randint(1, MAX_KILLS_PER_RUN), target - num_kills)
            num_kills += kill_and_resume(folder, rng, whole, wanted)
            num_runs += 1
    yield Row(
        name="L1 kills, resumed and equal",
        measured=num_kills,
        target=target,
        unit="kills",
        is_at_least=True,
        note=f"{num_runs} runs, each equal by SHA-256; at most one round redone",
    )
