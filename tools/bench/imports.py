"""The bench of imports: what the short commands load, and how long each package takes."""

import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tools.bench.rows import Row, bench

NUM_SHOWN: Final = 4
_LINE: Final = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)")


@bench("imports")
def slowest_imports(is_quick: bool) -> Iterator[Row]:
    """Measure with `-X importtime` which packages a short command waits for."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "small.jsonl"
        log.write_text('{"event_type":"A"}\n' * 100, encoding="ascii")
        commands = {
            "esper-train --help": ["esper.scripts.train", "--help"],
            "esper-telemetry count": ["esper.scripts.telemetry", "count", str(log)],
        }
        for name, arguments in commands.items():
            yield from _rows(name, [_import_times(arguments) for _ in range(1 if is_quick else 5)])


def _rows(name: str, runs: Sequence[Counter[str]]) -> Iterator[Row]:
    packages = {package for run in runs for package in run}
    medians = Counter({item: statistics.median(run[item] for run in runs) for item in packages})
    for package, import_us in medians.most_common(NUM_SHOWN):
        yield Row(name=f"imports of {name}: {package}", measured=import_us / 1e3, unit="ms")
    total_us = statistics.median(run.total() for run in runs)
    note = f"{len(packages)} top-level packages and modules"
    yield Row(name=f"imports of {name}: all", measured=total_us / 1e3, unit="ms", note=note)


def _import_times(arguments: Sequence[str]) -> Counter[str]:
    """Return the microseconds that each package takes by itself, its modules together."""
    command = [sys.executable, "-X", "importtime", "-m", *arguments]
    reported = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    times: Counter[str] = Counter()
    for match in _LINE.finditer(reported):
        times[match[2].partition(".")[0]] += int(match[1])
    return times
