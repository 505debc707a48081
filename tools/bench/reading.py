"""Benches of the readers: how fast events are counted, and two runs compared."""

import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.nissa.fake_run import FakeRun

from tools.bench.rows import Row, bench

_MIB: Final = 1 << 20
_SHAPE: Final = FakeRun(num_rounds=4, num_envs=4, num_steps=40)
_ONE_ROUND: Final = FakeRun(num_rounds=1, num_envs=4, num_steps=40)
_ROUND: Final = re.compile(rb'"round":\d+')
_VOLATILE: Final = re.compile(rb'"ts":[^,]+,"run_id":"[^"]*"')

_DUCKDB_SCRIPT: Final = """
import duckdb, sys
print(duckdb.connect().execute(
    "SELECT event_type, count(*) FROM read_json(?, format = 'newline_delimited',"
    " columns = {event_type: 'VARCHAR'}) GROUP BY 1", [sys.argv[1]]).fetchall())
"""


@bench("E3")
def count_against_duckdb(is_quick: bool) -> Iterator[Row]:
    """Measure a whole `count` process against DuckDB's group-by on the same file."""
    num_bytes, num_repeats = (64 << 20, 1) if is_quick else (1 << 30, 5)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "events.jsonl"
        _write_bytes(log, num_bytes)
        ours, theirs = _count_command(log), [sys.executable, "-c", _DUCKDB_SCRIPT, str(log)]
        times = [(_process_s(ours), _process_s(theirs)) for _ in range(num_repeats)]
        ratio = statistics.median(own / other for own, other in times)
        yield Row(name="E3 count, time of DuckDB", measured=ratio, target=0.7, unit="ratio")
        peak = _peak_tree_bytes(ours) / _MIB
        yield Row(name="E3 count, memory of all processes", measured=peak, target=64, unit="MiB")


@bench("E4")
def count_against_jq(is_quick: bool) -> Iterator[Row]:
    """Measure a whole `count` process against jq doing the same."""
    jq = shutil.which("jq")
    if jq is None:
        yield Row(name="E4 (jq is not installed)", measured=math.nan, target=0.05, unit="ratio")
        return
    num_bytes = (64 << 20) if is_quick else (512 << 20)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "events.jsonl"
        _write_bytes(log, num_bytes)
        counting = "reduce inputs.event_type as $type ({}; .[$type] += 1)"
        ratio = _process_s(_count_command(log)) / _process_s([jq, "-n", counting, str(log)])
    yield Row(name="E4 count, time of jq", measured=ratio, target=0.05, unit="ratio")


@bench("E8")
def diff_of_long_runs(is_quick: bool) -> Iterator[Row]:
    """Measure `diff` of two long runs: equal ones, and ones that part at the first step."""
    num_events, num_repeats = (100_000, 1) if is_quick else (1_000_000, 5)
    with tempfile.TemporaryDirectory() as folder:
        left, right, other = (Path(folder) / name for name in ("left", "right", "other"))
        _write_events(left, num_events, b'"ts":1.25,"run_id":"00000001"')
        _write_events(right, num_events, b'"ts":2.5,"run_id":"00000002"')
        same, differing = _diff_command(left, right), _diff_command(left, other)
        seconds = statistics.median(_process_s(same) for _ in range(num_repeats))
        yield Row(name=f"E8 diff of {num_events:,} events", measured=seconds, target=3.0, unit="s")
        peak = _peak_tree_bytes(same) / _MIB
        yield Row(name="E8 diff, memory of all processes", measured=peak, target=128, unit="MiB")
        right.rename(other)
        _change_early(other)
        seconds = statistics.median(_process_s(differing) for _ in range(num_repeats))
        yield Row(name="E8 diff, parting early", measured=seconds, target=10.0, unit="s")


def _write_bytes(log: Path, num_bytes: int) -> None:
    """Write a log of about this size: one run over and over."""
    block = b"".join(line + b"\n" for line in _SHAPE.lines())
    with log.open("wb") as stream:
        for _ in range(num_bytes // len(block) + 1):
            stream.write(block)


def _write_events(log: Path, num_events: int, volatile: bytes) -> None:
    """Write a long run: the rounds of a short one repeated under their own numbers."""
    first, *inner, last = (_VOLATILE.sub(volatile, line) + b"\n" for line in _ONE_ROUND.lines())
    block = b"".join(line for line in inner if _ROUND.search(line))
    num_rounds = num_events // len(inner)
    with log.open("wb") as stream:
        stream.write(first.replace(b'"num_rounds":1,', b'"num_rounds":%d,' % num_rounds))
        for number in range(num_rounds):
            stream.write(_ROUND.sub(b'"round":%d' % number, block))
        stream.write(last)


def _change_early(log: Path) -> None:
    with log.open("r+b") as stream:
        stream.readline()
        start = stream.tell()
        line = stream.readline()
        stream.seek(start)
        stream.write(line.replace(b'"group":"default"', b'"group":"changed"'))


def _count_command(log: Path) -> list[str]:
    return [sys.executable, "-m", "esper.scripts.telemetry", "count", str(log)]


def _diff_command(left: Path, right: Path) -> list[str]:
    return [sys.executable, "-m", "esper.scripts.telemetry", "diff", str(left), str(right)]


def _process_s(command: Sequence[str]) -> float:
    start_s = time.perf_counter()
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start_s


def _peak_tree_bytes(command: Sequence[str]) -> float:
    """Return the highest sum of resident memory over a process and its children (Linux only)."""
    if not Path("/proc/self/status").exists():
        return math.nan
    peaks: dict[int, int] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            for pid in (process.pid, *_children(process.pid)):
                peaks[pid] = max(peaks.get(pid, 0), _peak_bytes(pid))
            time.sleep(0.01)
    return sum(peaks.values())


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _peak_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match[1]) << 10 if match else 0
