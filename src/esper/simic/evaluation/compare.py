"""Comparisons: arms by seeds with paired random streams, kept run by run, summed up honestly."""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from esper.leyline.comparison import (
    ArmRun,
    ArmSummary,
    ComparisonReport,
    Contrast,
    EpisodeMeasure,
)
from esper.leyline.config import Job
from esper.leyline.errors import (
    InterruptedRunError,
    RunFailedError,
    UnreadableFileError,
    UsageError,
)
from esper.nissa.files import FileSystem, write_atomically
from esper.simic.evaluation.arms import Arm, run_arm
from esper.simic.evaluation.statistics import (
    Scores,
    bootstrap,
    interquartile_mean,
    mean_difference,
    pareto_front,
    probability_of_improvement,
)
from esper.simic.training.machine import one_thread_per_worker, warm_up_math
from esper.simic.training.vectorized import load_data
from esper.tolaria.stopping import StopFlag
from esper.tolaria.supervisor import stop_signals

__all__ = ["RunStore", "compare", "summarize"]

GIGA: Final = 1e9
QUARTILES_PCT: Final = (25.0, 75.0)
Progress = Callable[[ArmRun, bool], None]
"""Hears of every run, and whether it was found rather than made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStore:
    """Keeps every run in a file of its own, so that an interrupted comparison goes on."""

    directory: Path
    job: Job
    greedy: bool

    def path_of(self, arm: Arm, stratum: int, seed: int) -> Path:
        """Return where a run is kept; whatever could change it is part of the name."""
        training = msgspec.structs.replace(self.job.training, seed=seed, n_episodes=1)
        is_greedy = self.greedy and arm.follows_policy
        told = msgspec.json.encode([training, arm.command, arm.digest(stratum), is_greedy])
        digest = hashlib.sha256(told).hexdigest()[:16]
        return self.directory / f"{arm.name.partition(':')[0]}-seed{seed}-{digest}.json"

    def read(self, arm: Arm, stratum: int, seed: int) -> ArmRun | None:
        """Return a run that was kept."""
        path = self.path_of(arm, stratum, seed)
        try:
            run = msgspec.json.decode(path.read_bytes(), type=ArmRun)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise UnreadableFileError(path, f"{error}; remove it to run it again") from None
        # A checkpoint may have moved since: its content counts, not its path.
        return msgspec.structs.replace(run, arm=arm.name, stratum=stratum)

    def write(self, run: ArmRun, arm: Arm) -> None:
        """Keep a run."""
        path = self.path_of(arm, run.stratum, run.seed)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomically(FileSystem(), path, msgspec.json.encode(run))
        except OSError as error:
            raise UsageError(f"{path}: cannot keep the run: {error.strerror}") from None


def compare(
    job: Job,
    arms: Sequence[Arm],
    *,
    seeds: Sequence[int],
    directory: Path,
    greedy: bool = False,
    progress: Progress | None = None,
    shutdown_event: threading.Event | None = None,
) -> ComparisonReport:
    """Run what is missing of every arm under every seed, and sum all of it up.

    Args:
        job: what to grow; its seed is that of the bootstrap, its rounds do not count.
        arms: who decides.
        seeds: one round of envs each, the same for all arms.
        directory: where runs are kept.
        greedy: policies take the likeliest choices instead of sampling.
        progress: hears of every run.
        shutdown_event: set it to stop at the next cancellation point.
    """
    if len(seeds) < 2 or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise UsageError(
            f"seeds {list(seeds)}: give at least two, none negative, each once, such as 1000-1019"
        )
    store = RunStore(directory=directory, job=job, greedy=greedy)
    # Seed by seed, so that what an interrupted comparison has is paired.
    wanted = [
        (arm, stratum, seed)
        for seed, arm in product(seeds, arms)
        for stratum in range(arm.num_strata)
    ]
    stop = StopFlag(shutdown_event)
    runs: dict[tuple[str, int, int], ArmRun] = {}
    with one_thread_per_worker(), stop_signals(stop):
        warm_up_math()
        dataset = load_data(job, stop)
        for arm, stratum, seed in wanted:
            copied = None if arm.copies is None else runs[arm.copies.name, stratum, seed]
            try:
                stop.checkpoint()
                kept = store.read(arm, stratum, seed)
                run = kept or run_arm(
                    job,
                    arm,
                    stratum=stratum,
                    seed=seed,
                    stop=stop,
                    greedy=greedy,
                    model=copied,
                    dataset=dataset,
                )
            except InterruptedRunError:
                raise InterruptedRunError(
                    f"comparison interrupted ({stop.reason}): {len(runs)} of {len(wanted)} runs "
                    f"are kept in {directory}; give the same command again to go on"
                ) from None
            if kept is None:
                store.write(run, arm)
            if progress is not None:
                progress(run, kept is not None)
            runs[arm.name, stratum, seed] = run
    return summarize(job, arms, runs, greedy=greedy)


def summarize(
    job: Job,
    arms: Sequence[Arm],
    runs: Mapping[tuple[str, int, int], ArmRun],
    *,
    greedy: bool = False,
) -> ComparisonReport:
    """Sum up runs, keyed by arm, stratum and seed; seeds that lost a whole run are left out."""
    seeds = sorted({seed for _, _, seed in runs})
    kept = [seed for seed in seeds if all(run.envs for key, run in runs.items() if key[2] == seed)]
    if len(kept) < 2:
        raise RunFailedError(f"only {len(kept)} of {len(seeds)} seeds have an env left in each arm")
    strata = {
        arm.name: [[runs[arm.name, stratum, seed] for seed in kept] for stratum in range(n)]
        for arm in arms
        if (n := arm.num_strata)
    }
    summaries = [_summary(arm, strata, job.training.seed) for arm in arms]
    front = pareto_front(
        [summary.final_pct.value for summary in summaries],
        [summary.num_params_added for summary in summaries],
    )
    return ComparisonReport(
        task=job.training.task,
        preset=job.training.preset,
        seeds=tuple(kept),
        num_steps=job.training.max_epochs,
        num_envs=job.training.n_envs,
        is_greedy=greedy,
        arms=tuple(
            msgspec.structs.replace(summary, is_on_front=is_on_front)
            for summary, is_on_front in zip(summaries, front, strict=True)
        ),
        contrasts=tuple(
            _contrast(first.name, second.name, strata, job.training.seed)
            for first, second in combinations(arms, 2)
        ),
    )


_Strata = Mapping[str, Sequence[Sequence[ArmRun]]]
"""Runs by arm, stratum and seed."""


def _summary(arm: Arm, strata: _Strata, seed: int) -> ArmSummary:
    mine = strata[arm.name]
    runs = [run for stratum in mine for run in stratum]
    envs = [env for run in runs for env in run.envs]
    iqm = {
        name: bootstrap([_means(stratum, name) for stratum in mine], interquartile_mean, seed=seed)
        for name in ("final_pct", "best_pct", "mean_pct", "total_reward")
    }
    curves = [np.mean([env.curve_pct for env in run.envs], axis=0) for run in runs]
    low, high = np.percentile(curves, QUARTILES_PCT, axis=0).tolist()
    return ArmSummary(
        arm=arm.name,
        num_policies=arm.num_strata if arm.follows_policy else 0,
        num_runs=len(runs),
        num_envs=len(envs),
        num_failed=sum(run.num_failed for run in runs),
        **iqm,
        num_params_added=_mean(envs, "num_params_added"),
        train_gflops=_mean(envs, "train_flops") / GIGA,
        wall_s=float(np.mean([run.wall_s for run in runs])),
        num_germinated=_mean(envs, "num_germinated"),
        num_fossilized=_mean(envs, "num_fossilized"),
        num_pruned=_mean(envs, "num_pruned"),
        num_fossils_measured=sum(env.num_fossils_measured for env in envs),
        num_fossils_positive=sum(env.num_fossils_positive for env in envs),
        equal_flops_pct=_equal_flops_pct(mine, strata[arm.copies.name]) if arm.copies else None,
        is_on_front=False,
        curve_pct=tuple(np.mean([env.curve_pct for env in envs], axis=0).tolist()),
        curve_low_pct=tuple(low),
        curve_high_pct=tuple(high),
    )


def _contrast(first: str, second: str, strata: _Strata, seed: int) -> Contrast:
    return Contrast(
        first=first,
        second=second,
        final_pp=bootstrap(_pairs(first, second, strata, "final_pct"), mean_difference, seed=seed),
        mean_pp=bootstrap(_pairs(first, second, strata, "mean_pct"), mean_difference, seed=seed),
        total_reward=bootstrap(
            _pairs(first, second, strata, "total_reward"), mean_difference, seed=seed
        ),
        probability=bootstrap(
            _pairs(first, second, strata, "final_pct"), probability_of_improvement, seed=seed
        ),
    )


def _pairs(first: str, second: str, strata: _Strata, name: str) -> list[Scores]:
    """Put runs of the same seed side by side; an arm with one stratum meets each of the other's."""
    left, right = strata[first], strata[second]
    return [
        np.stack([_means(left[k % len(left)], name), _means(right[k % len(right)], name)], axis=1)
        for k in range(max(len(left), len(right)))
    ]


def _means(runs: Sequence[ArmRun], name: str) -> Scores:
    """Return each run's mean over its envs: envs of a run share its data order."""
    return np.array([_mean(run.envs, name) for run in runs])


def _mean(envs: Sequence[EpisodeMeasure], name: str) -> float:
    return float(np.mean([getattr(env, name) for env in envs]))


def _equal_flops_pct(
    static: Sequence[Sequence[ArmRun]], grown: Sequence[Sequence[ArmRun]]
) -> float | None:
    """Read the static curves at the step by which they have cost what growing did."""
    budgets = {
        (stratum, run.seed, env.env_id): env.train_flops
        for stratum, runs in enumerate(grown)
        for run in runs
        for env in run.envs
    }
    found = [
        _accuracy_at(env, budgets[stratum, run.seed, env.env_id])
        for stratum, runs in enumerate(static)
        for run in runs
        for env in run.envs
        if (stratum, run.seed, env.env_id) in budgets
    ]
    return float(np.mean(found)) if found else None


def _accuracy_at(env: EpisodeMeasure, flops: int) -> float:
    num_steps = len(env.curve_pct)
    affordable = flops * num_steps // max(env.train_flops, 1)
    return env.curve_pct[min(max(affordable, 1), num_steps) - 1]
