"""What an ablation measures, on networks that are trained for one pass."""

from tools.worth import Worth, measure, summary

from esper.leyline.actions import Blueprint
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset, registered_task


def test_contribution_by_batch_statistics_is_near_the_one_estimated_anew() -> None:
    task = registered_task("digits").spec
    dataset = load_dataset("digits", DataRequest())

    found = measure(task, dataset, Blueprint.NORM, alpha=1.0, num_passes=3)

    assert abs(found.batch_pp - found.reestimated_pp) <= 3.0


def test_summary_has_the_distances_from_the_estimate() -> None:
    found = [
        Worth(
            blueprint=Blueprint.NORM,
            alpha=1.0,
            running_pp=10.0 * index,
            batch_pp=5.5,
            reestimated_pp=5.0,
        )
        for index in (1, 2, 3)
    ]

    text = summary(found)

    assert "| median distance | 15.0 | 0.5 |" in text
    assert "| largest distance | 25.0 | 0.5 |" in text
