"""Curves and counts of a run, as they are read for an overlay."""

from collections import Counter
from pathlib import Path

import pytest
from tests.karn.runs import append_lines, write_run
from tests.karn.story import Story

from esper.karn.view.run_curves import MAX_POINTS, RunCurves
from esper.karn.view.view_feed import read_run
from esper.leyline.errors import UnreadableFileError
from esper.leyline.payloads import Throughput
from esper.leyline.telemetry import decode_event

STORY = Story(num_rounds=5, num_envs=2, num_steps=6)


def read_all(curves: RunCurves) -> RunCurves:
    while curves.read_more():
        pass
    return curves


def test_curves_and_counts_are_those_of_the_whole_log(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", STORY.lines())
    events = [decode_event(line) for line in STORY.lines()]
    spent = [event.data for event in events if isinstance(event.data, Throughput)]

    curves = read_all(RunCurves(run_dir, flop_per_sample=1e9))

    rounds = read_run(run_dir).snapshot().rounds
    points = curves.points()
    assert [(point.round, point.accuracy_pct, point.reward) for point in points] == [
        (row.round, row.mean_accuracy_pct, row.mean_reward) for row in rounds
    ]
    assert points[-1].env_steps == sum(one.env_steps for one in spent)
    assert points[-1].wall_s == pytest.approx(sum(one.duration_s for one in spent))
    assert points[0].gflop == pytest.approx(spent[0].train_samples)
    assert points[-1].gflop is not None
    assert points[-1].gflop >= sum(one.train_samples for one in spent)
    assert curves.counts == Counter(event.event_type for event in events)


def test_log_that_grows_is_read_once(tmp_path: Path) -> None:
    lines = list(STORY.lines())
    run_dir = write_run(tmp_path / "run", lines[:50])
    curves = read_all(RunCurves(run_dir, None))
    append_lines(run_dir, lines[50:])
    read_all(curves)

    at_once = read_all(RunCurves(run_dir, None))

    assert (curves.points(), curves.counts) == (at_once.points(), at_once.counts)
    assert all(point.gflop is None for point in curves.points())


def test_log_that_was_cut_back_is_an_error(tmp_path: Path) -> None:
    lines = list(STORY.lines())
    run_dir = write_run(tmp_path / "run", lines)
    curves = read_all(RunCurves(run_dir, None))
    (run_dir / "events.jsonl").write_bytes(b"\n".join(lines[:40]) + b"\n")

    with pytest.raises(UnreadableFileError):
        curves.read_more()


def test_points_are_bounded_and_the_newest_are_whole(tmp_path: Path) -> None:
    first, *_ = [line for line in STORY.lines() if b'"BATCH_EPOCH_COMPLETED"' in line]
    rounds = 3 * MAX_POINTS
    lines = [first.replace(b'"round":0', b'"round":%d' % index) for index in range(rounds)]
    run_dir = write_run(tmp_path / "run", lines)

    points = read_all(RunCurves(run_dir, None)).points()

    assert MAX_POINTS // 2 < len(points) <= MAX_POINTS
    newest = range(rounds - MAX_POINTS // 2 + 1, rounds)
    assert [point.round for point in points[-len(newest) :]] == list(newest)
    assert points[0].round == 0


def test_hostile_lines_add_nothing(tmp_path: Path) -> None:
    lines = [b'{"event_type":"NO_SUCH_TYPE"}', b'{"event_type":"THROUGHPUT","seq":', b"\xff" * 40]
    run_dir = write_run(tmp_path / "run", lines)

    curves = read_all(RunCurves(run_dir, None))

    assert (curves.points(), curves.counts) == ((), {"THROUGHPUT": 1})
