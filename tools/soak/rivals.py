"""Two processes on one run, delayed at every file operation: one wins, nothing is half done."""

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.builders.fingerprints import fingerprint
from tools.bench.rows import Row
from tools.soak.children import CONTEXT, resume_flags, run_child
from tools.soak.tampering import finished_run

from esper.leyline.errors import ExitCode
from esper.nissa.analysis.validation import validate_run
from esper.nissa.storage.files import FileSystem

QUICK_PAIRS, FULL_PAIRS = 5, 1_000
WAIT_S = 60.0
MAX_DELAY_S = 0.02
DELAYED = (
    *("open", "lock", "write", "fsync", "truncate", "rename", "link", "remove"),
    *("fsync_directory", "status_at", "close"),
)


def _delayed(rng: random.Random, operation: Any) -> Any:
    def delayed(*arguments: Any) -> Any:
        time.sleep(rng.random() ** 4 * MAX_DELAY_S)
        return operation(*arguments)

    return delayed


def run_delayed(argv: list[str], output: Path, seed: int) -> None:
    """Run `esper-train` in this process with a random delay before every file operation."""
    rng = random.Random(seed)
    for name in DELAYED:
        setattr(FileSystem, name, _delayed(rng, getattr(FileSystem, name)))
    run_child(argv, output, None)


def resume_twice(folder: Path, whole: Path, expected: str, seed: int) -> int:
    """Resume one run in two processes at once; return how many of them did."""
    telemetry_dir = folder / "rivals"
    shutil.rmtree(telemetry_dir, ignore_errors=True)
    shutil.copytree(whole.parent, telemetry_dir)
    run_dir = telemetry_dir / whole.name
    outputs = [folder / f"rival-{number}.txt" for number in range(2)]
    rivals = []
    for number, output in enumerate(outputs):
        output.unlink(missing_ok=True)
        arguments = (resume_flags(telemetry_dir), output, 2 * seed + number)
        rivals.append(CONTEXT.Process(target=run_delayed, args=arguments))
        rivals[-1].start()
    for rival in rivals:
        rival.join(WAIT_S)
        if rival.is_alive():
            rival.kill()
    codes = [rival.exitcode for rival in rivals]
    told = [output.read_text() for output in outputs]
    for code, text in zip(codes, told, strict=True):
        assert code in (ExitCode.OK, ExitCode.USAGE), f"seed {seed}: exit code {code}: {text}"
        if code == ExitCode.USAGE:
            assert "another process is writing this log" in text, f"seed {seed}: {text}"
    assert ExitCode.OK in codes, f"seed {seed}: neither resumed: {told}"
    found = validate_run(run_dir)
    assert found.is_valid, f"seed {seed}: {found.findings}"
    assert fingerprint(run_dir) == expected, f"seed {seed}: the run is another run"
    assert not list(run_dir.rglob("*.tmp")), f"seed {seed}: temporary files are left"
    return codes.count(ExitCode.OK)


def interrupted_run(folder: Path) -> tuple[Path, str]:
    """Return a run without its last round, and the fingerprint that it has with it."""
    whole = finished_run(folder)
    expected = fingerprint(whole)
    newest = max((whole / "checkpoints").glob("round-*.pt"))
    newest.unlink()
    return whole, expected


def rows(is_quick: bool) -> Iterator[Row]:
    """Resume one run twice at once: row L16."""
    target = QUICK_PAIRS if is_quick else FULL_PAIRS
    num_refused = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, expected = interrupted_run(folder)
        for seed in range(target):
            num_refused += resume_twice(folder, whole, expected, seed) == 1
    yield Row(
        name="L16 two processes on one run, nothing half done",
        measured=target,
        target=target,
        unit="pairs",
        is_at_least=True,
        note=f"random delays at every file operation; {num_refused} times one was refused, else "
        "one came after the other's end",
    )
