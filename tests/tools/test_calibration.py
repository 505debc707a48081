"""The calibration compares two runs that are the same until a seed is removed."""

from pathlib import Path

import pytest
from tests.builders.tiny_runs import tiny_job
from tools.calibration import (
    Calibration,
    SeedWorth,
    calibrate,
    page_of,
    planted_in,
    slope_of,
    spearman,
)

from esper.leyline.jobs import merge_job


def test_rank_correlation_is_that_of_ranks() -> None:
    assert spearman([1.0, 2.0, 10.0], [0.1, 0.2, 0.3]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 10.0], [5.0, 4.0, -3.0]) == pytest.approx(-1.0)
    # Ranks 1, 2.5, 2.5, 4 against 1, 3, 2, 4.
    assert spearman([0.0, 1.0, 1.0, 2.0], [0.0, 2.0, 1.0, 3.0]) == pytest.approx(0.9486833)
    assert spearman([1.0, 1.0], [0.0, 2.0]) == 0.0


def test_slope_is_that_of_least_squares() -> None:
    assert slope_of([0.0, 1.0, 2.0], [3.0, 5.0, 7.0]) == pytest.approx(2.0)
    assert slope_of([1.0, 1.0], [0.0, 2.0]) == 0.0


def test_worth_of_a_probe_seed_is_what_was_measured() -> None:
    # Nothing is retrained on a probe: what removal costs is what the ablation has measured.
    layer = {"training": {"task": "probe:lottery", "n_envs": 8, "seed": 3}}
    job, _ = merge_job(("test", layer))

    found = calibrate(job, removal_step=12)

    assert {round(seed.measured_pp, 6) for seed in found.seeds} == {40.0, -20.0}
    assert [seed.real_pp for seed in found.seeds] == pytest.approx(
        [seed.measured_pp for seed in found.seeds]
    )
    assert (found.correlation, found.slope) == (pytest.approx(1.0), pytest.approx(1.0))


def test_blueprints_and_slots_are_taken_in_turn(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, task="digits", n_envs=42, max_epochs=1)

    planted = {
        (plan[0].blueprint, plan[0].slot)
        for plan in (planted_in(job, env_id) for env_id in range(42))
    }

    assert len(planted) == 21


def test_page_shows_every_seed() -> None:
    seeds = tuple(
        SeedWorth(blueprint=name, slot="r0c0", measured_pp=1.0, real_pp=2.0)
        for name in ("norm", "conv_light")
    )
    page = page_of(Calibration(seeds=seeds, correlation=0.5, slope=1.5), "digits")

    assert "2 seeds on digits: rank correlation 0.50, slope 1.50" in page
    assert page.count("<td>r0c0</td>") == 2
