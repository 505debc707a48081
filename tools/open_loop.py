"""Whether growth by a fixed schedule is as good as its final network trained from the start.

`python -m tools.open_loop --task digits` grows networks by schedules that ignore what is measured,
and trains each final network from its first step on, with the same host, data order, learning rates
and number of steps. It prints test accuracy and training FLOP of both, for every schedule and every
choice of learning rates, best difference first. Runs are kept in `--out` and are not repeated.
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import torch

from esper.leyline.actions import ActionSpec, Blueprint, Op, Tempo
from esper.leyline.config import Job
from esper.leyline.jobs import merge_job
from esper.leyline.messages import EnvEvidence
from esper.leyline.payloads import TopologyManifestRecorded
from esper.leyline.tasks import Settings
from esper.runtime.batches import Batch
from esper.runtime.datasets import TensorDataset
from esper.runtime.tasks import all_tasks
from esper.simic.evaluation.evaluation_round import EvaluationRound, evaluate_round
from esper.simic.evaluation.flops import FlopMeter
from esper.simic.evaluation.statistics import t_quantile
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import prepare_run
from esper.simic.training.assembly.worker_assembly import Topologies, env_context
from esper.tamiyo.controllers.protocol import Choice, Situation
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import StopFlag
from tools.markdown import table

__all__ = ["RECIPES", "Recipe", "Result", "ScheduleController", "main", "measure", "summary"]

FLOP_SAMPLES: Final = 2
"""Norms reject one sample in training mode."""
COSINE: Final[Settings] = {"host_schedule": {"curve": "cosine"}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """When what is planted, and the learning rates, the same for both networks."""

    name: str
    start: int
    """The step of the first germination; the others follow in the next steps."""
    blueprints: tuple[str, ...]
    """One for each slot, in action order."""
    tempo: Tempo = Tempo.FAST
    isolation: int = 1
    """Passes that a seed trains before it is blended."""
    settings: Settings = field(default_factory=dict)


_HEAVY: Final = (Blueprint.CONV_HEAVY,) * 3
_LIGHT: Final = (Blueprint.CONV_LIGHT,) * 3

RECIPES: Final[Mapping[str, tuple[Recipe, ...]]] = {
    "schedules": (
        *(
            Recipe(name=f"{name} from step {start}", start=start, blueprints=seeds)
            for name, seeds in (("conv_heavy", _HEAVY), ("conv_light", _LIGHT))
            for start in (2, 8, 16)
        ),
        Recipe(
            name="conv_light from step 2, 5 passes alone, slow ramp",
            start=2,
            blueprints=_LIGHT,
            isolation=5,
            tempo=Tempo.SLOW,
        ),
        *(
            Recipe(
                name=f"conv_light from step {start}, cosine",
                start=start,
                blueprints=_LIGHT,
                settings=COSINE,
            )
            for start in (2, 8)
        ),
    ),
    "rates": tuple(
        Recipe(
            name=f"{label}, seed_lr {seed_lr}",
            start=2,
            blueprints=_LIGHT,
            settings={**schedule, "seed_lr": seed_lr},
        )
        for label, schedule in (
            ("constant", {}),
            ("cosine", COSINE),
            ("warm-up 3", {"host_schedule": {"warmup_steps": 3}}),
            ("re-warm-up 3", {"host_schedule": {"rewarmup_steps": 3}}),
        )
        for seed_lr in (0.005, 0.02, 0.05)
    ),
}
"""What `--set` chooses from."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One seed of a recipe, on the test split after the last step."""

    recipe: str
    seed: int
    grown_pct: float
    static_pct: float
    grown_flops: float
    static_flops: float
    num_seeds: int
    """Seeds that take part in the final network."""


@dataclass(eq=False, kw_only=True, slots=True)
class ScheduleController:
    """Germinates what a recipe says at the steps that it says, and otherwise waits."""

    recipe: Recipe
    slot_ids: tuple[str, ...]
    name: str = "schedule"

    def begin_round(self, round_index: int) -> None:
        """Do nothing: there is no state to reset."""

    def choose(self, situation: Situation) -> Choice:
        """Choose the same action for every env."""
        index = situation.step - self.recipe.start
        action = ActionSpec(slot_id=self.slot_ids[0])
        if 0 <= index < len(self.recipe.blueprints):
            action = ActionSpec(
                op=Op.GERMINATE,
                slot_id=self.slot_ids[index],
                blueprint=self.recipe.blueprints[index],
                tempo=self.recipe.tempo,
            )
        num_envs = len(situation.envs)
        return Choice(actions=(action,) * num_envs, details=(None,) * num_envs)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trained:
    accuracy_pct: float
    flops: float
    topology: TopologyManifestRecorded


def job_of(task: str, recipe: Recipe, *, seed: int, num_steps: int, data_dir: str | None) -> Job:
    """Return the job of one network."""
    lifecycle = {"auto_forward": (1, 2, 3), "min_training_steps": recipe.isolation}
    training = {"task": task, "n_envs": 1, "max_epochs": num_steps, "seed": seed}
    layer = {
        "training": {**training, "lifecycle": lifecycle, **recipe.settings},
        "run": {"engine": "threads", "data_dir": data_dir},
    }
    job, _ = merge_job((recipe.name, layer), tasks=all_tasks())
    return job


def measure(job: Job, recipe: Recipe, dataset: TensorDataset | None = None) -> Result:
    """Train the grown network, and its final network from the first step on."""
    grown = _trained(job, recipe, dataset, {})
    static = _trained(job, None, dataset, {0: grown.topology})
    return Result(
        recipe=recipe.name,
        seed=job.training.seed,
        grown_pct=grown.accuracy_pct,
        static_pct=static.accuracy_pct,
        grown_flops=grown.flops,
        static_flops=static.flops,
        num_seeds=len(static.topology.slots),
    )


def _trained(
    job: Job, recipe: Recipe | None, dataset: TensorDataset | None, topologies: Topologies
) -> _Trained:
    stop = StopFlag()
    setup = prepare_run(job, "wait", None, stop, parts=RunParts(), dataset=dataset)
    if recipe is not None:
        controller = ScheduleController(recipe=recipe, slot_ids=job.training.slots)
        setup = dataclasses.replace(setup, controller=controller)
    done = run_event_loop(partial(evaluate_round, setup, topologies=topologies), stop)
    inputs, targets = next(iter(setup.worker.val_batches.batches(round=0, step=0)))[0]
    sample = Batch(inputs[:FLOP_SAMPLES], targets[:FLOP_SAMPLES])
    meter = FlopMeter(context=env_context(setup.worker), sample=sample)
    (test,) = done.tested[-1]
    assert test is not None, "the network broke down"
    return _Trained(
        accuracy_pct=test.accuracy_pct,
        flops=sum(env.train_samples * meter.per_target(env.reports) for env in _seen(done)),
        topology=done.topologies[0],
    )


def _seen(done: EvaluationRound) -> Iterable[EnvEvidence]:
    return (env for step in done.steps for env in step.envs if env is not None)


def summary(results: Sequence[Result]) -> str:
    """Return the table of all recipes, the one with the best difference first."""
    names = dict.fromkeys(result.recipe for result in results)
    groups = [[result for result in results if result.recipe == name] for name in names]
    groups.sort(key=_mean_difference, reverse=True)
    head = ("recipe", "seeds", "grown", "from the start", "difference", "FLOP")
    return table(head, [_row(group) for group in groups])


def _mean_difference(group: Sequence[Result]) -> float:
    return statistics.fmean(result.grown_pct - result.static_pct for result in group)


def _row(group: Sequence[Result]) -> tuple[str, ...]:
    differences = [result.grown_pct - result.static_pct for result in group]
    mean, half = statistics.fmean(differences), 0.0
    if len(group) > 1:
        error = statistics.stdev(differences) / len(group) ** 0.5
        half = t_quantile(len(group) - 1) * error
    cost = sum(r.grown_flops for r in group) / sum(r.static_flops for r in group)
    return (
        group[0].recipe,
        str(len(group)),
        *(
            f"{statistics.fmean(values):.1f} %"
            for values in (
                [result.grown_pct for result in group],
                [result.static_pct for result in group],
            )
        ),
        f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})",
        f"{cost:.2f}",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the recipes of a set and print their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--set", default="schedules", choices=RECIPES)
    parser.add_argument("--recipe", action="append", help="only those that begin like this")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, help="a file of finished runs, one in each line")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    recipes = [
        recipe
        for recipe in RECIPES[options.set]
        if recipe.name.startswith(tuple(options.recipe or ("",)))
    ]
    results = _kept(options.out)
    known = {(result.recipe, result.seed) for result in results}
    # Seed by seed, so that an interrupted measurement has all recipes.
    for seed in range(options.seeds):
        for recipe in recipes:
            if (recipe.name, seed) not in known:
                facts = {"seed": seed, "num_steps": options.steps, "data_dir": options.data_dir}
                results.append(measure(job_of(options.task, recipe, **facts), recipe))
                _keep(options.out, results[-1])
    names = {recipe.name for recipe in recipes}
    print(summary([result for result in results if result.recipe in names]))
    return 0


def _kept(path: Path | None) -> list[Result]:
    if path is None or not path.exists():
        return []
    return [msgspec.json.decode(line, type=Result) for line in path.read_bytes().splitlines()]


def _keep(path: Path | None, result: Result) -> None:
    if path is not None:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
