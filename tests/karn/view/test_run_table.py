"""The kept list of runs: equal to the list that is read anew, and read only where it changed."""

import fcntl
from pathlib import Path

import msgspec
from tests.karn.runs import append_lines, write_run
from tests.karn.story import STARTED_TS, Story

from esper.karn.view.run_list import list_runs
from esper.karn.view.run_table import RunTable

LINES = list(Story(num_rounds=3, num_envs=2, num_steps=4, has_trouble=False).lines())
NOW = STARTED_TS + 100.0


def refresh(table: RunTable) -> list[str]:
    changed = table.changed()
    for run in changed:
        table.read(run, NOW)
    return [run.name for run in changed]


def test_rows_equal_the_list_and_only_changed_runs_are_read_again(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_run(tmp_path / name, LINES[:40])
    table = RunTable(tmp_path, max_runs=10)
    assert sorted(refresh(table)) == ["a", "b", "c"]
    assert refresh(table) == []

    append_lines(tmp_path / "b", LINES[40:])

    assert refresh(table) == ["b"]
    expected = [
        msgspec.structs.replace(row, directory=Path(row.directory).name)
        for row in list_runs(tmp_path, NOW)
    ]
    assert table.rows() == expected
    with (tmp_path / "a" / "events.jsonl").open() as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert refresh(table) == ["a"]
        assert {row.directory: row.state for row in table.rows()}["a"] == "running"


def test_runs_that_are_gone_or_beyond_the_limit_are_not_listed(tmp_path: Path) -> None:
    for name in ("20260101T000000Z_a", "20260102T000000Z_b", "20260103T000000Z_c"):
        write_run(tmp_path / name, LINES[:10])
    table = RunTable(tmp_path, max_runs=2)
    refresh(table)
    assert [row.directory[-1] for row in table.rows()] == ["c", "b"]
    assert table.num_runs == 3
    for path in (tmp_path / "20260103T000000Z_c").iterdir():
        path.unlink()
    refresh(table)
    assert [row.directory[-1] for row in table.rows()] == ["b", "a"]
