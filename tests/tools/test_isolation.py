"""The figures of isolation, on a host that is trained for two passes."""

import pytest
from tools.isolation import OBJECTIVES, Figure, all_blueprints, main, measure, tables

from esper.leyline.actions import Blueprint, Style, Topology
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset, registered_task


def test_every_seed_is_measured_and_switched_on_after_the_side_loss_does_no_damage() -> None:
    task = registered_task("digits").spec
    dataset = load_dataset("digits", DataRequest())

    figures = measure(
        task, dataset, repetition=0, slots=("r0c2",), passes=(1,), objectives=("side loss",)
    )

    seeds = {(figure.blueprint, figure.style.algorithm) for figure in figures}
    assert len(figures) == len(seeds) == 3 * len(all_blueprints(Topology.CNN))
    assert max(figure.change_pct for figure in figures) <= 2.0


def test_tables_show_the_spread_of_each_objective_and_the_worst_of_each_seed() -> None:
    figures = [
        Figure(
            objective=objective,
            blueprint=Blueprint.NORM,
            style=Style.LINEAR_ADD,
            slot_id=f"r0c{index}",
            num_passes=5,
            change_pct=change,
        )
        for objective in OBJECTIVES
        for index, change in enumerate((-1.0, 0.5, 7.0))
    ]

    text = tables(figures)

    assert text.count("| +0.5, +7.0 (2 of 3) |") == len(OBJECTIVES)
    assert "| `norm`, ADD | +7.0 |" in text


def test_unknown_objective_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--objective", "hope"])

    assert "invalid choice: 'hope'" in capsys.readouterr().err
