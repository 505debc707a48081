"""Groups of runs are compared by the means of their last rounds."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from tests.nissa.fake_run import FakeRun

from esper.karn.mcp.comparison import compare_groups
from esper.leyline.payloads import BatchEpochCompleted

SHAPE = FakeRun(num_rounds=4, num_steps=2)


def accuracy(shape: FakeRun, num_rounds: int) -> float:
    rounds = [it.data for it in shape.events() if isinstance(it.data, BatchEpochCompleted)]
    return fmean(row.mean_accuracy_pct or 0.0 for row in rounds[-num_rounds:])


def test_means_are_those_of_the_last_rounds_and_intervals_hold_them(tmp_path: Path) -> None:
    shapes = [replace(SHAPE, run_id=f"{index:08x}", seed=index) for index in range(6)]
    runs = [shape.write(tmp_path) for shape in shapes]

    compared = compare_groups({"a": runs[:3], "b": runs[3:]}, num_rounds=2, sources=[])

    means = [fmean(accuracy(shape, 2) for shape in group) for group in (shapes[:3], shapes[3:])]
    for group, mean in zip(compared.groups, means, strict=True):
        assert group.accuracy_pct is not None
        assert group.accuracy_pct.mean == pytest.approx(mean)
        assert group.accuracy_pct.low <= mean <= group.accuracy_pct.high
    (difference,) = compared.differences
    assert difference.accuracy_pp is not None
    assert difference.accuracy_pp.mean == pytest.approx(means[0] - means[1])
    assert compared.caution is not None
    assert "fewer than 5 runs in a, b" in compared.caution


def test_a_group_without_finished_rounds_has_no_numbers(tmp_path: Path) -> None:
    run = replace(SHAPE, num_rounds=0).write(tmp_path)
    (group,) = compare_groups({"a": [run]}, num_rounds=2, sources=[]).groups
    assert (group.num_runs, group.accuracy_pct, group.task_return) == (1, None, None)
