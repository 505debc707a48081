"""The list of runs."""

import fcntl
from pathlib import Path

import msgspec
import pytest
from tests.karn.runs import MANIFEST, write_run
from tests.karn.story import STARTED_TS, Story

from esper.karn.view.run_list import RunRow, list_runs
from esper.karn.view.view_feed import read_run
from esper.leyline.config import Job, RunOptions, TrainingConfig

STORIES = {
    "trouble": Story(num_rounds=6, num_envs=2, num_steps=12),
    "quiet": Story(num_rounds=9, num_envs=2, num_steps=6, has_trouble=False),
    "early": Story(num_rounds=2, num_envs=2, num_steps=6, has_trouble=False),
    "fixed": Story(num_rounds=4, num_envs=2, num_steps=6, controller="wait"),
}


def row_of(run_dir: Path, now: float = STARTED_TS + 3600.0) -> RunRow:
    [row] = list_runs(run_dir.parent, now)
    return row


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_row_says_what_the_whole_log_says(tmp_path: Path, story: Story) -> None:
    run_dir = write_run(tmp_path / "runs" / "one", story.lines())
    view = read_run(run_dir).snapshot()

    row = row_of(run_dir)

    assert view.verdict.headline == f"Finished, {row.verdict}"
    assert row.rounds_completed == view.progress.rounds_completed == story.num_rounds
    assert row.accuracy_pct == view.rounds[-1].mean_accuracy_pct
    assert row.task_return == view.rounds[-1].mean_task_return
    assert (row.state, row.controller, row.task) == ("completed", story.controller, "digits")
    assert row.num_bytes == sum(path.stat().st_size for path in run_dir.iterdir())


def test_labels_and_age_come_from_the_manifest(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "one", STORIES["early"].lines())
    job = Job(
        training=TrainingConfig(n_episodes=77, group_id="g"),
        run=RunOptions(name="mine", tags={"a": "1"}),
    )
    manifest = msgspec.structs.replace(MANIFEST, job=job, created="2026-01-01T00:00:00+00:00")
    (run_dir / "run.json").write_bytes(msgspec.json.encode(manifest))

    row = row_of(run_dir, now=1_767_225_600.0 + 90.0)  # 2026 began at that second

    assert (row.name, row.tags, row.num_rounds, row.age_s) == ("mine", {"a": "1"}, 77, 90.0)


def test_unfinished_run_is_running_exactly_while_its_log_is_locked(tmp_path: Path) -> None:
    run_dir = write_run(
        tmp_path / "runs" / "one", Story(num_rounds=2, num_steps=4, is_finished=False).lines()
    )
    assert row_of(run_dir).state == "killed"
    with (run_dir / "events.jsonl").open() as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert row_of(run_dir).state == "running"


def test_damaged_run_is_listed_with_what_is_known(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "one", [b"not an event", b"{}"])
    (run_dir / "run.json").write_text("{")
    (tmp_path / "runs" / "nothing").mkdir()

    row = row_of(run_dir)

    assert (row.state, row.run_id, row.rounds_completed, row.task) == ("empty", None, 0, None)
