"""Growth by a schedule beside its final network, on networks that are trained for a few passes."""

from pathlib import Path

import msgspec
import pytest
from tools.open_loop import RECIPES, Recipe, Result, job_of, main, measure, summary

from esper.leyline.actions import Blueprint
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset


def test_grown_network_costs_less_than_its_final_network_from_the_start() -> None:
    recipe = Recipe(name="quick", start=4, blueprints=(Blueprint.CONV_SMALL,) * 3)
    job = job_of("digits", recipe, seed=3, num_steps=9, data_dir=None)

    found = measure(job, recipe, load_dataset("digits", DataRequest()))

    assert (found.recipe, found.seed, found.num_seeds) == ("quick", 3, 3)
    assert 0.5 < found.grown_flops / found.static_flops < 1.0
    assert 0.0 < found.grown_pct < 100.0


def result(name: str, seed: int, *, grown: float, static: float) -> Result:
    return Result(
        recipe=name,
        seed=seed,
        grown_pct=grown,
        static_pct=static,
        grown_flops=3.0,
        static_flops=4.0,
        num_seeds=3,
    )


def test_best_difference_comes_first_with_its_interval_and_cost() -> None:
    worse = [result("worse", seed, grown=90.0 + seed, static=91.0 + seed) for seed in range(3)]
    better = [result("better", seed, grown=90.0 + seed, static=89.0) for seed in range(3)]

    lines = summary([*worse, *better]).splitlines()

    # Differences of 1, 2 and 3 have an error of 1 / sqrt(3); Student's t with 2 degrees is 4.303.
    assert lines[2] == "| better | 3 | 91.0 % | 89.0 % | +2.00 (-0.48 to +4.48) | 0.75 |"
    assert lines[3] == "| worse | 3 | 91.0 % | 92.0 % | -1.00 (-1.00 to -1.00) | 0.75 |"


@pytest.mark.parametrize("name", RECIPES)
def test_runs_that_were_kept_are_not_repeated(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = [result(recipe.name, 0, grown=90.0, static=91.0) for recipe in RECIPES[name]]
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(item) + b"\n" for item in kept))

    assert main(["--set", name, "--seeds", "1", "--out", str(path)]) == 0

    assert capsys.readouterr().out.count("| 90.0 % | 91.0 % |") == len(RECIPES[name])
    assert len(path.read_bytes().splitlines()) == len(kept)
