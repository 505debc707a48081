"""Is a seed's counterfactual contribution worth acting on?

`python -m tools.calibration` grows one seed in each of 42 envs, every blueprint in every slot on
two hosts, and measures each seed's contribution in step 20. Then every episode is run again, and
the seed is removed in that step: the difference of the final test accuracies is what the seed was
really worth, after the host has been trained without it for as long as with it. Both episodes have
the same weights and batches until then. Prints the rank correlation and the slope, and with
`--html` writes a page with a plot.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from esper.karn.report.comparison_page import html_table, report_page
from esper.karn.report.comparison_plots import Plot, colour_of
from esper.karn.report.comparison_tables import Table
from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, Op
from esper.leyline.config import Job
from esper.leyline.jobs import merge_job
from esper.leyline.schedules import Schedule, ScheduledAction, actions_by_step
from esper.simic.evaluation.evaluation_round import EvaluationRound, evaluate_round
from esper.simic.training.assembly.machine import one_thread_per_worker
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import prepare_run
from esper.tamiyo.controllers.open_loop import ScheduleController
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import StopFlag
from tools.markdown import table

__all__ = [
    "REQUIRED_CORRELATION",
    "Calibration",
    "SeedWorth",
    "calibrate",
    "main",
    "planted_in",
    "slope_of",
    "spearman",
]

NUM_HOSTS: Final = 2
"""Hosts on which every blueprint is tried in every slot."""
REQUIRED_CORRELATION: Final = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedWorth:
    """What a seed seemed to be worth, and what it was."""

    blueprint: str
    slot: str
    measured_pp: float
    """Counterfactual contribution in the step of its removal."""
    real_pp: float
    """Final test accuracy with the seed, minus that after removal and retraining."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """All seeds, and how well the measured worth predicts the real one."""

    seeds: tuple[SeedWorth, ...]
    correlation: float
    """Spearman's rank correlation."""
    slope: float
    """Points of real worth per point of measured worth, by least squares."""


def calibrate(job: Job, *, removal_step: int) -> Calibration:
    """Grow every blueprint in every slot, with and without removal, and compare.

    Args:
        job: the task; it decides how many envs there are, which take blueprints and slots in turn.
        removal_step: the step in which the seeds are removed.
    """
    training = job.training
    kept = [planted_in(job, env_id) for env_id in range(training.n_envs)]
    removed = [
        (*plan, ScheduledAction(step=removal_step, op=Op.PRUNE.name.lower(), slot=plan[0].slot))
        for plan in kept
    ]
    with one_thread_per_worker():
        whole, cut = (_played(job, plans) for plans in (kept, removed))
    seeds = []
    for env_id, plan in enumerate(kept):
        evidence = whole.steps[removal_step].envs[env_id]
        seed = None if evidence is None else evidence.attribution.of(plan[0].slot)
        ends = [done.tested[-1][env_id] for done in (whole, cut)]
        # A seed that is not blended in by then has no contribution, and is not removed either.
        if seed is None or ends[0] is None or ends[1] is None:
            continue
        seeds.append(
            SeedWorth(
                blueprint=str(plan[0].blueprint),
                slot=plan[0].slot,
                measured_pp=seed.contribution_pp,
                real_pp=ends[0].accuracy_pct - ends[1].accuracy_pct,
            )
        )
    measured, real = [item.measured_pp for item in seeds], [item.real_pp for item in seeds]
    return Calibration(
        seeds=tuple(seeds), correlation=spearman(measured, real), slope=slope_of(measured, real)
    )


def planted_in(job: Job, env_id: int) -> Schedule:
    """Return what is planted in an env: every blueprint in every slot, in turn."""
    _, task = merge_job(("calibration", {"training": {"task": job.training.task}}))
    blueprints, slots = BLUEPRINTS_BY_TOPOLOGY[task.host.topology], job.training.slots
    blueprint = blueprints[env_id % len(blueprints)]
    slot = slots[env_id // len(blueprints) % len(slots)]
    planted = ScheduledAction(step=0, op=Op.GERMINATE.name.lower(), slot=slot, blueprint=blueprint)
    return (planted,)


def _played(job: Job, plans: Sequence[Schedule]) -> EvaluationRound:
    stop = StopFlag()
    setup = prepare_run(job, "wait", None, stop, parts=RunParts())
    controller = ScheduleController(setup.worker.rules, [actions_by_step(plan) for plan in plans])
    return run_event_loop(partial(evaluate_round, replace(setup, controller=controller)), stop)


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the rank correlation; equal values share the mean of their ranks."""
    ranks = [_ranks(values) for values in (first, second)]
    if any(np.ptp(rank) == 0.0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    _, places, counts = np.unique(np.array(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: np.ndarray = (last - (counts - 1) / 2.0)[places]
    return means


def slope_of(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the slope of the second values over the first, by least squares."""
    spread = float(np.var(first))
    return float(np.cov(first, second, bias=True)[0, 1]) / spread if spread else 0.0


def page_of(found: Calibration, task: str) -> str:
    """Return a page with a plot of every seed."""
    blueprints = list(dict.fromkeys(seed.blueprint for seed in found.seeds))
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [seed.measured_pp for seed in found.seeds if seed.blueprint == name],
            "y": [seed.real_pp for seed in found.seeds if seed.blueprint == name],
            "text": [seed.slot for seed in found.seeds if seed.blueprint == name],
            "marker": {"color": colour_of(index)},
        }
        for index, name in enumerate(blueprints)
    ]
    layout = {
        "xaxis": {"title": {"text": "counterfactual contribution, pp"}},
        "yaxis": {"title": {"text": "worth by removal and retraining, pp"}},
    }
    body = (
        f"<p>{len(found.seeds)} seeds on {task}: rank correlation {found.correlation:.2f}, slope "
        f'{found.slope:.2f}.</p><div class="plot" id="seeds"></div>'
        f"{html_table('Seeds', seeds_table(found))}"
    )
    return report_page("Calibration", body, [Plot(id="seeds", data=list(data), layout=layout)])


def seeds_table(found: Calibration) -> Table:
    """Return every seed with its measured and its real worth."""
    rows = [
        (seed.blueprint, seed.slot, f"{seed.measured_pp:+.1f}", f"{seed.real_pp:+.1f}")
        for seed in sorted(found.seeds, key=lambda seed: seed.measured_pp)
    ]
    return Table(("blueprint", "slot", "contribution, pp", "real worth, pp"), rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Calibrate, print the figures, and return 1 if the correlation is too low."""
    arguments = _parser().parse_args(argv)
    layer = {
        "training": {
            "task": arguments.task,
            "seed": arguments.seed,
            "n_envs": arguments.envs,
            "max_epochs": arguments.steps,
            "lifecycle": {"min_prune_age_steps": 0},
        }
    }
    job, task = merge_job(("calibration", layer))
    found = calibrate(job, removal_step=arguments.removal_step)
    shown = seeds_table(found)
    print(table(shown.head, shown.rows))
    print(
        f"\n{len(found.seeds)} seeds: rank correlation {found.correlation:.2f} (at least "
        f"{REQUIRED_CORRELATION}), slope {found.slope:.2f}"
    )
    if arguments.html is not None:
        arguments.html.write_text(page_of(found, task.name), encoding="utf-8")
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.encode(found))
    return int(found.correlation < REQUIRED_CORRELATION)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.calibration", description=__doc__)
    parser.add_argument("--task", default="digits", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=2000, help="default: %(default)s")
    parser.add_argument(
        "--envs", type=int, default=NUM_HOSTS * 21, help="seeds to grow (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--removal-step", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with a plot")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    return parser


if __name__ == "__main__":
    sys.exit(main())
