"""Sinks and exports as a user has them: the commands, and a run that no sink can disturb."""

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from tests.builders.commands import run_esper
from tests.simic.training.runs import lines_of

PROBE = ("ppo", "--task", "probe:memory", "--rounds", "2", "--envs", "2", "--seed", "3", "--quiet")


def run_with(folder: Path, *flags: str) -> tuple[Path, str]:
    """Return the directory of a run and what it printed on stderr."""
    done = run_esper("train", *PROBE, "--telemetry-dir", str(folder), *flags)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*_*")
    return found, done.stderr


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_with(tmp_path_factory.mktemp("plain"))[0]


def test_several_sinks_get_a_run_that_equals_one_without(plain: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    sinks = (f"jsonl:{out}", "tensorboard")
    run, _ = run_with(tmp_path / "runs", "--sink", sinks[0], "--sink", sinks[1])
    assert lines_of(run) == lines_of(plain)
    stored = json.loads((run / "run.json").read_text())["job"]["run"]["sinks"]
    assert stored == ["jsonl", "tensorboard"]
    for sink in sinks:  # on a busy machine, a sink may be late at the end of so short a run
        done = run_esper("telemetry", "export", str(run), "--to", sink, "--continue")
        assert done.returncode == 0, done.stderr
    lines = dict.fromkeys(out.read_bytes().splitlines())
    assert list(lines) == (run / "events.jsonl").read_bytes().splitlines()
    assert list(run.glob("tensorboard/events.out.tfevents.*")) != []


def test_a_sink_that_hangs_is_reported_once_and_changes_nothing(
    plain: Path, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # which nobody reads
    run, complaints = run_with(
        tmp_path / "runs", "--sink", f"jsonl:{pipe}", "--set", "run.sink_deadline_s=0.5"
    )
    assert lines_of(run) == lines_of(plain)
    reports = (run / "operational.jsonl").read_text().count("SINK_STOPPED")
    # In the log while the run lasts, and on stderr after its end.
    assert reports + complaints.count("the sink jsonl stopped") == 1


def test_an_unknown_sink_ends_the_command_before_anything_is_written(tmp_path: Path) -> None:
    done = run_esper("train", *PROBE, "--telemetry-dir", str(tmp_path / "runs"), "--sink", "wand")
    assert done.returncode == 2
    assert "did you mean 'wandb'" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_parquet_and_csv_have_the_rows_of_the_views(plain: Path, tmp_path: Path) -> None:
    for form in ("parquet", "csv"):
        done = run_esper(
            "telemetry", "export", str(plain), "--to", form, "-o", str(tmp_path / form)
        )
        assert done.returncode == 0, done.stderr
        rows = duckdb.sql(f"SELECT round FROM '{tmp_path / form / 'rounds'}.{form}'").fetchall()
        assert rows == [(0,), (1,)]
    again = run_esper("telemetry", "export", str(plain), "--to", "csv", "-o", str(tmp_path / "csv"))
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_an_export_continues_where_an_earlier_one_stopped(plain: Path, tmp_path: Path) -> None:
    sink = f"jsonl:{tmp_path / 'copy.jsonl'}"
    first = run_esper("telemetry", "export", str(plain), "--to", sink)
    assert first.returncode == 0, first.stderr
    num_events = len((plain / "events.jsonl").read_bytes().splitlines())
    assert first.stdout == f"delivered {num_events} events to {sink}\n"
    again = run_esper("telemetry", "export", str(plain), "--to", sink, "--continue")
    assert again.stdout == f"delivered 0 events to {sink}, from event {num_events} on\n"


def test_an_installed_package_adds_a_sink(plain: Path, tmp_path: Path) -> None:
    info = tmp_path / "counting-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[esper.sinks]\ncounting = counting:open_sink\n")
    (tmp_path / "counting.py").write_text(PLUGIN)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "esper.scripts.telemetry", "export", str(plain)),
            *("--to", f"counting:{tmp_path / 'count'}"),
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "count").read_text() == str(
        len((plain / "events.jsonl").read_bytes().splitlines())
    )


PLUGIN = """
from pathlib import Path


class Counting:
    def __init__(self, request):
        self.path, self.count = Path(request.target), 0

    def write(self, events):
        self.count += len(events)

    def close(self):
        self.path.write_text(str(self.count))


open_sink = Counting
"""


def test_a_query_says_nothing_of_its_library(plain: Path) -> None:
    done = run_esper("telemetry", "query", str(plain), "SELECT count(*) FROM rounds")
    assert (done.returncode, done.stderr) == (0, "")
