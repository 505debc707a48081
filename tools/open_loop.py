"""Whether growth by a fixed schedule is as good as its final network trained from the start.

`python -m tools.open_loop --task digits` grows networks by schedules that ignore what is measured,
and trains each final network from its first step on, with the same host, data order, learning rates
and number of steps. It prints test accuracy and training FLOP of both, for every schedule and every
choice of learning rates, best difference first. Runs are kept in `--out` and are not repeated.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import torch

from esper.kasmina.seed import GerminationRequest
from esper.leyline.actions import Blueprint, Tempo
from esper.leyline.config import Job
from esper.leyline.jobs import merge_job
from esper.leyline.tasks import Settings
from esper.runtime.batches import Batch
from esper.runtime.datasets import TensorDataset
from esper.runtime.tasks import all_tasks
from esper.simic.evaluation.flops import FlopMeter
from esper.simic.evaluation.statistics import t_quantile
from esper.simic.telemetry.emitters import topology_manifest
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.worker_assembly import Topologies, build_work, env_context
from esper.simic.training.assembly.worker_setup import WorkerSetup, load_data, prepare_worker
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.tolaria.stopping import StopFlag
from tools.markdown import table

__all__ = ["RECIPES", "Recipe", "Result", "job_of", "main", "measure", "summary"]

FLOP_SAMPLES: Final = 2
"""Norms reject one sample in training mode."""
COSINE: Final[Settings] = {"host_schedule": {"curve": "cosine"}}
REWARMED: Final[Settings] = {"host_schedule": {"rewarmup_steps": 3}}


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

_CHANGES: Final[Mapping[str, Settings]] = {
    "": {},
    ", cosine": COSINE,
    ", warm-up 3": {"host_schedule": {"warmup_steps": 3}},
    ", re-warm-up 3": REWARMED,
    ", host_lr 0.03": {"host_lr": 0.03},
    ", host_lr 0.05": {"host_lr": 0.05},
    ", cosine, host_lr 0.03": {**COSINE, "host_lr": 0.03},
    ", re-warm-up 3, host_lr 0.03": {**REWARMED, "host_lr": 0.03},
}
_FASHION: Final = {
    (Blueprint.CONV_HEAVY, 2): {
        "": (0.05, 0.1, 0.2, 0.4, 0.8),
        ", cosine": (0.05, 0.1, 0.2),
        ", warm-up 3": (0.05,),
        ", re-warm-up 3": (0.05, 0.1, 0.4),
        ", host_lr 0.03": (0.05, 0.1, 0.2),
        ", host_lr 0.05": (0.1,),
        ", cosine, host_lr 0.03": (0.1, 0.2),
        ", re-warm-up 3, host_lr 0.03": (0.1,),
    },
    (Blueprint.CONV_HEAVY, 1): {"": (0.05, 0.1)},
    (Blueprint.CONV_HEAVY, 4): {"": (0.1,)},
    (Blueprint.CONV_LIGHT, 2): {
        "": (0.1, 0.2),
        ", cosine": (0.2,),
        ", host_lr 0.03": (0.1,),
    },
    (Blueprint.BOTTLENECK, 2): {"": (0.1,)},
    ("widen", 2): {"": (0.1,)},
    ("grad_max", 2): {"": (0.1,)},
}
"""Rates of the seeds by blueprint, first step and change of settings."""


def _tried_on_fashion() -> Iterator[Recipe]:
    for (blueprint, start), choices in _FASHION.items():
        for label, rates in choices.items():
            for seed_lr in rates:
                yield Recipe(
                    name=f"{blueprint} from step {start}, seed_lr {seed_lr}{label}",
                    start=start,
                    blueprints=(blueprint,) * 3,
                    settings={**_CHANGES[label], "seed_lr": seed_lr},
                )


RECIPES: Final[Mapping[str, tuple[Recipe, ...]]] = {
    "schedules": (
        *(
            Recipe(name=f"{name} from step {start}", start=start, blueprints=seeds)
            for name, seeds in (("conv_heavy", _HEAVY), ("conv_light", _LIGHT))
            for start in (0, 2, 8, 16)
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
                name=f"{name} from step {start}, cosine",
                start=start,
                blueprints=seeds,
                settings=COSINE,
            )
            for name, seeds in (("conv_heavy", _HEAVY), ("conv_light", _LIGHT))
            for start in (0, 2, 8)
        ),
    ),
    "rates": tuple(
        Recipe(
            name=f"{label}, seed_lr {seed_lr}",
            start=2,
            blueprints=_HEAVY,
            isolation=isolation,
            settings={**schedule, "seed_lr": seed_lr},
        )
        for label, schedule, isolation, seed_lr in (
            ("constant", {}, 1, 0.005),
            ("constant", {}, 1, 0.02),
            ("constant", {}, 1, 0.05),
            ("cosine", COSINE, 1, 0.02),
            ("warm-up 3", {"host_schedule": {"warmup_steps": 3}}, 1, 0.02),
            ("re-warm-up 3", REWARMED, 1, 0.02),
            ("constant, 5 passes alone", {}, 5, 0.005),
            ("constant, 5 passes alone", {}, 5, 0.02),
        )
    ),
    "fashion": tuple(_tried_on_fashion()),
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


def measure(job: Job, recipe: Recipe, dataset: TensorDataset) -> Result:
    """Train the grown network, and its final network from the first step on."""
    setup = prepare_worker(job, StopFlag(), parts=RunParts(), dataset=dataset)
    meter = FlopMeter(context=env_context(setup), sample=_sample(setup))
    grown, grown_flops = _trained(setup, meter, recipe, {})
    manifest = topology_manifest(grown.model.num_host_params, grown.reports)
    static, static_flops = _trained(setup, meter, None, {0: manifest})
    return Result(
        recipe=recipe.name,
        seed=job.training.seed,
        grown_pct=_test(setup, grown),
        static_pct=_test(setup, static),
        grown_flops=grown_flops,
        static_flops=static_flops,
        num_seeds=static.model.num_fossils,
    )


def _sample(setup: WorkerSetup) -> Batch:
    inputs, targets = next(iter(setup.val_batches.batches(round=0, step=0)))[0]
    return Batch(inputs[:FLOP_SAMPLES], targets[:FLOP_SAMPLES])


def _trained(
    setup: WorkerSetup, meter: FlopMeter, recipe: Recipe | None, topologies: Topologies
) -> tuple[ParallelEnvState, float]:
    """Train a network as a run does, without validation; return it with its FLOPs."""
    work, flops = build_work(setup, topologies), 0.0
    env = work.build(0, 0)
    for step in range(setup.job.training.max_epochs):
        _train(work, env, setup, step)
        cost = meter.per_target(env.reports)
        flops += env.train.total * cost.train + env.num_tried * cost.trial
        if recipe is not None:
            _germinate(env, recipe, step)
        env.tick()
    return env, flops


def _train(work: TrainingWork, env: ParallelEnvState, setup: WorkerSetup, step: int) -> None:
    work.begin_train(env, step)
    for index, shares in enumerate(setup.train_batches.batches(round=0, step=step)):
        work.train_batch(env, index, shares[0])
    work.finish_train(env)


def _germinate(env: ParallelEnvState, recipe: Recipe, step: int) -> None:
    index = step - recipe.start
    if 0 <= index < len(recipe.blueprints):
        request = GerminationRequest(
            seed_id=f"seed_{index}",
            blueprint=recipe.blueprints[index],
            tempo_steps=recipe.tempo.steps,
            step=step,
        )
        env.model.germinate(env.slot_ids[index], request, env.seed_generator)


def _test(setup: WorkerSetup, env: ParallelEnvState) -> float:
    return build_work(setup).test(env, _no_beat).accuracy_pct


def _no_beat() -> None:
    """Do nothing: no watchdog looks at this loop."""


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
    parser.add_argument("--recipe", action="append", help="only those with these names")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, help="a file of finished runs, one in each line")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    recipes = [
        recipe
        for recipe in RECIPES[options.set]
        if options.recipe is None or recipe.name in options.recipe
    ]
    results, dataset = _kept(options.out), None
    known = {(result.recipe, result.seed) for result in results}
    # Seed by seed, so that an interrupted measurement has all recipes.
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for recipe in recipes:
            if (recipe.name, seed) not in known:
                facts = {"seed": seed, "num_steps": options.steps, "data_dir": options.data_dir}
                job = job_of(options.task, recipe, **facts)
                dataset = dataset or load_data(job, StopFlag())
                results.append(measure(job, recipe, dataset))
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
