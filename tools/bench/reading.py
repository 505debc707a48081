"""Benchmarks of the readers: counting events and comparing runs."""

import math
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import Final, NamedTuple

from tests.nissa.fake_run import FakeRun

from esper.nissa.bus.writer import MAX_BLOCK_EVENTS
from esper.nissa.reading.lines import LOG_NAME
from esper.nissa.storage.block_facts import parse_facts
from esper.nissa.storage.blocks import Block, CommitRecord, checksum_path
from tools.bench.pairing import Sample
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
_READ_SCRIPT: Final = """
import msgspec, sys
decode = msgspec.json.Decoder().decode
with open(sys.argv[1], "rb") as log:
    for line in log:
        decode(line)
"""


@bench("E3")
def count_against_duckdb(is_quick: bool) -> Iterator[Row]:
    """Measure a whole `count` process against DuckDB's group-by on the same file.

    Once as a run leaves it, beside its checksums, and once by itself, where every byte is parsed.
    """
    num_bytes, num_repeats = (64 << 20, 3) if is_quick else (1 << 30, 5)
    with tempfile.TemporaryDirectory() as folder:
        log, alone = _write_run(Path(folder), num_bytes)
        vouched, parsed = _count_command(log), _count_command(alone)
        duckdb = [sys.executable, "-c", _DUCKDB_SCRIPT, str(log)]
        _usage(duckdb)  # warms the page cache
        usages = [(_usage(vouched), _usage(parsed), _usage(duckdb)) for _ in range(num_repeats)]
        yield _ratio_row("E3 count, time of DuckDB", 0.35, [(a, c) for a, _, c in usages])
        name = "E3 count without checksums, time of DuckDB"
        yield _ratio_row(name, 0.9, [(b, c) for _, b, c in usages])
        peak = peak_tree_bytes(vouched) / _MIB
        yield Row(name="E3 count, memory of all processes", measured=peak, target=64, unit="MiB")


@bench("E4")
def count_against_jq(is_quick: bool) -> Iterator[Row]:
    """Measure a whole `count` process against jq doing the same."""
    jq = shutil.which("jq")
    if jq is None:
        yield Row(name="E4 (jq is not installed)", measured=math.nan, target=0.05, unit="ratio")
        return
    num_bytes, num_repeats = (96 << 20, 1) if is_quick else (512 << 20, 5)
    counting = "reduce inputs.event_type as $type ({}; .[$type] += 1)"
    with tempfile.TemporaryDirectory() as folder:
        log, _ = _write_run(Path(folder), num_bytes)
        ours, theirs = _count_command(log), [jq, "-n", counting, str(log)]
        _usage(ours)  # warms the page cache
        usages = [(_usage(ours), _usage(theirs)) for _ in range(num_repeats)]
    yield _ratio_row("E4 count, time of jq", 0.05, usages)


@bench("E8")
def diff_of_long_runs(is_quick: bool) -> Iterator[Row]:
    """Measure `diff` of two long runs: equal ones, and ones that part at the first step.

    Beside it two processes read the two logs, line by line with msgspec, without comparing them.
    """
    # As many in the quick form: in short logs, starting the processes takes most of the time.
    num_events, num_repeats = 1_000_000, 2 if is_quick else 5
    with tempfile.TemporaryDirectory() as folder:
        left, right = (Path(folder) / name for name in ("left", "right"))
        _write_events(left, num_events, b'"ts":1.25,"run_id":"00000001"')
        _write_events(right, num_events, b'"ts":2.5,"run_id":"00000002"')
        ours = _diff_command(left, right)
        theirs = [
            [sys.executable, "-c", _READ_SCRIPT, str(run / LOG_NAME)] for run in (left, right)
        ]
        _usage(*theirs)  # warms the page cache
        usages = [(_usage(ours), _usage(*theirs)) for _ in range(num_repeats)]
        yield _ratio_row(f"E8 diff of {num_events:,} equal events, time of msgspec", 0.3, usages)
        peak = peak_tree_bytes(ours) / _MIB
        yield Row(name="E8 diff, memory of all processes", measured=peak, target=128, unit="MiB")
        _write_events(right, num_events, b'"ts":2.5,"run_id":"00000002"', group=b"changed")
        usages = [(_usage(ours), _usage(*theirs)) for _ in range(num_repeats)]
        yield _ratio_row("E8 diff, early divergence, time of msgspec", 1.2, usages)
        peak = peak_tree_bytes(ours) / _MIB
        name = "E8 diff, early divergence, memory of all processes"
        yield Row(name=name, measured=peak, target=128, unit="MiB")


def _write_run(folder: Path, num_bytes: int) -> tuple[Path, Path]:
    """Write a log of about this size, one run over and over, in blocks as a hub would.

    Gives the log beside its checksums, and the same file under a name that has none.
    """
    lines = [line + b"\n" for line in _SHAPE.lines()]
    log, alone = folder / LOG_NAME, folder / "alone.jsonl"
    num_repeats = math.ceil(num_bytes / sum(map(len, lines)))
    write_log(log, chain.from_iterable(repeat(lines, num_repeats)))
    alone.hardlink_to(log)
    return log, alone


def write_log(log: Path, lines: Iterable[bytes]) -> None:
    """Write lines, each with its newline, and their checksums, in blocks as a hub would."""
    rest = iter(lines)
    with log.open("wb") as stream, checksum_path(log).open("wb") as checksums:
        for seq in count(0, MAX_BLOCK_EVENTS):
            part = list(islice(rest, MAX_BLOCK_EVENTS))
            if not part:
                return
            block = Block(seq, len(part), b"".join(part))
            checksums.write(CommitRecord.of(block, stream.tell(), parse_facts(block)).line())
            stream.write(block.data)


def _write_events(
    run_dir: Path, num_events: int, volatile: bytes, group: bytes = b"default"
) -> None:
    """Write a long run: the rounds of a short one repeated under their own numbers.

    Another group stands in its second event alone.
    """
    first, *inner, last = (_VOLATILE.sub(volatile, line) + b"\n" for line in _ONE_ROUND.lines())
    block = b"".join(line for line in inner if _ROUND.search(line))
    num_rounds = num_events // len(inner)
    first = first.replace(b'"num_rounds":1,', b'"num_rounds":%d,' % num_rounds)
    rounds = (_ROUND.sub(b'"round":%d' % number, block) for number in range(num_rounds))
    lines = chain.from_iterable(part.splitlines(keepends=True) for part in rounds)
    second = next(lines).replace(b'"group":"default"', b'"group":"%b"' % group)
    run_dir.mkdir(exist_ok=True)
    write_log(run_dir / LOG_NAME, chain((first, second), lines, (last,)))


def _count_command(log: Path) -> list[str]:
    return [sys.executable, "-m", "esper.scripts.telemetry", "count", str(log)]


def _diff_command(left: Path, right: Path) -> list[str]:
    return [sys.executable, "-m", "esper.scripts.telemetry", "diff", str(left), str(right)]


class _Usage(NamedTuple):
    """What processes and their children took."""

    wall_s: float
    cpu_s: float


def _usage(*commands: Sequence[str]) -> _Usage:
    """Measure commands that run at the same time."""
    before, start_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    for process in processes:
        process.wait()
    wall_s = time.perf_counter() - start_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return _Usage(wall_s, cpu_s)


def _ratio_row(name: str, target: float, usages: Sequence[tuple[_Usage, _Usage]]) -> Row:
    """Compare commands that ran in turn; the note has what a busy machine leaves alone."""
    ratio = Sample(tuple(ours.wall_s / theirs.wall_s for ours, theirs in usages))
    cpu = Sample(tuple(ours.cpu_s / theirs.cpu_s for ours, theirs in usages))
    seconds = statistics.median(ours.wall_s for ours, _ in usages)
    note = f"{ratio.note}; CPU ratio {cpu.median:.3g}; {seconds:.3g} s"
    return Row(name=name, measured=ratio.median, target=target, unit="ratio", note=note)


def peak_tree_bytes(command: Sequence[str]) -> float:
    """Return the highest sum of resident memory over a process and its children (Linux only)."""
    if not Path("/proc/self/status").exists():
        return math.nan
    peaks: dict[int, int] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            for pid in (process.pid, *children(process.pid)):
                peaks[pid] = max(peaks.get(pid, 0), peak_bytes(pid))
            time.sleep(0.01)
    return sum(peaks.values())


def children(pid: int) -> list[int]:
    """Return the processes that a process's main thread has started (Linux)."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def peak_bytes(pid: int) -> int:
    """Return the highest resident memory of a process so far; 0 where that is not known."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match[1]) << 10 if match else 0
