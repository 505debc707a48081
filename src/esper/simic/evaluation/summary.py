"""The report of a comparison: interquartile means, intervals, differences, Pareto front."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final

import msgspec
import numpy as np

from esper.leyline.comparison import (
    ArmRun,
    ArmSummary,
    ComparisonReport,
    Contrast,
    EpisodeMeasure,
    Estimate,
)
from esper.leyline.config import Job
from esper.leyline.errors import RunFailedError
from esper.runtime.tasks import registered_task
from esper.simic.evaluation.arms import Arm, ArmKind
from esper.simic.evaluation.context_figures import figures_by_context, target_figures
from esper.simic.evaluation.statistics import (
    ArmScores,
    Scores,
    bootstrap,
    interquartile_mean,
    mean_difference,
    pareto_front,
    probability_of_improvement,
    share_closed,
)

__all__ = ["summarize"]

GIGA: Final = 1e9
QUARTILES_PCT: Final = (25.0, 75.0)


def summarize(
    job: Job,
    arms: Sequence[Arm],
    runs: Mapping[tuple[str, int, int], ArmRun],
    *,
    greedy: bool = False,
) -> ComparisonReport:
    """Return the report of runs keyed by arm, stratum and seed, without seeds of failed runs."""
    seeds = sorted({seed for _, _, seed in runs})
    kept = [seed for seed in seeds if all(run.envs for key, run in runs.items() if key[2] == seed)]
    if len(kept) < 2:
        raise RunFailedError(f"only {len(kept)} of {len(seeds)} seeds have an env left in each arm")
    strata = {
        arm.name: [[runs[arm.name, stratum, seed] for seed in kept] for stratum in range(n)]
        for arm in arms
        if (n := arm.num_strata)
    }
    seed = job.training.seed
    target_pct = registered_task(job.training.task).spec.success_accuracy_pct
    summaries = [_summary(arm, strata, seed, target_pct) for arm in arms]
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
        target_pct=target_pct,
        arms=tuple(
            msgspec.structs.replace(
                summary, is_on_front=is_on_front, **_against_oracle(arm, arms, strata, seed)
            )
            for arm, summary, is_on_front in zip(arms, summaries, front, strict=True)
        ),
        contrasts=tuple(
            _contrast(first, second, strata, seed) for first, second in combinations(arms, 2)
        ),
    )


_Strata = Mapping[str, Sequence[Sequence[ArmRun]]]
"""Runs by arm, stratum and seed."""


def _summary(arm: Arm, strata: _Strata, seed: int, target_pct: float) -> ArmSummary:
    mine = strata[arm.name]
    runs = [run for stratum in mine for run in stratum]
    envs = [env for run in runs for env in run.envs]
    iqm = {
        name: bootstrap([_scores(arm, strata, name)], interquartile_mean, seed=seed)
        for name in ("final_pct", "best_pct", "mean_pct", "task_return", "total_reward")
    }
    curves = [np.mean([env.curve_pct for env in run.envs], axis=0) for run in runs]
    alone_s = [run.wall_s for run in runs if run.wall_s is not None]
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
        wall_s=float(np.mean(alone_s)) if alone_s else None,
        num_germinated=_mean(envs, "num_germinated"),
        num_fossilized=_mean(envs, "num_fossilized"),
        num_pruned=_mean(envs, "num_pruned"),
        num_fossils_measured=sum(env.num_fossils_measured for env in envs),
        num_fossils_positive=sum(env.num_fossils_positive for env in envs),
        equal_flops_pct=_equal_flops_pct(mine, strata[arm.copies.name])
        if arm.copies and arm.kind is ArmKind.STATIC
        else None,
        is_on_front=False,
        **target_figures(envs, target_pct),
        contexts=figures_by_context(envs, target_pct),
        curve_pct=tuple(np.mean([env.curve_pct for env in envs], axis=0).tolist()),
        curve_low_pct=tuple(low),
        curve_high_pct=tuple(high),
    )


def _against_oracle(
    arm: Arm, arms: Sequence[Arm], strata: _Strata, seed: int
) -> dict[str, Estimate]:
    """Return an arm's regret, and the share of the gap that it closes, where they are defined."""
    oracle = next((other for other in arms if other.kind is ArmKind.ORACLE), None)
    if oracle is None or arm is oracle:
        return {}
    mine, best = (_scores(item, strata, "task_return") for item in (arm, oracle))
    found = {"regret": bootstrap([best, mine], mean_difference, seed=seed)}
    schedules = [other for other in arms if other.kind is ArmKind.SCHEDULE and other is not arm]
    if schedules:
        scores = [_scores(other, strata, "task_return") for other in schedules]
        schedule = max(scores, key=lambda item: float(item.scores.mean()))
        # Where no schedule is worse than the oracle, there is no gap.
        if best.scores.mean() > schedule.scores.mean():
            found["gap_closed"] = bootstrap([mine, schedule, best], share_closed, seed=seed)
    return found


def _contrast(first: Arm, second: Arm, strata: _Strata, seed: int) -> Contrast:
    figures = {
        name: [_scores(arm, strata, name) for arm in (first, second)]
        for name in ("final_pct", "mean_pct", "task_return", "total_reward")
    }
    return Contrast(
        first=first.name,
        second=second.name,
        final_pp=bootstrap(figures["final_pct"], mean_difference, seed=seed),
        mean_pp=bootstrap(figures["mean_pct"], mean_difference, seed=seed),
        task_return=bootstrap(figures["task_return"], mean_difference, seed=seed),
        total_reward=bootstrap(figures["total_reward"], mean_difference, seed=seed),
        probability=_probability(figures["final_pct"], seed),
    )


def _probability(arms: Sequence[ArmScores], seed: int) -> Estimate:
    """Return the probability of improvement, with an interval between 0 and 1."""
    found = bootstrap(arms, probability_of_improvement, seed=seed)
    return Estimate(value=found.value, low=max(found.low, 0.0), high=min(found.high, 1.0))


def _scores(arm: Arm, strata: _Strata, name: str) -> ArmScores:
    """Return an arm's runs, policy by policy and seed by seed."""
    return ArmScores(
        np.array([_means(stratum, name) for stratum in strata[arm.name]]),
        policies=arm.policy_set,
    )


def _means(runs: Sequence[ArmRun], name: str) -> Scores:
    """Return each run's mean over its envs, which are not independent: they share data order."""
    return np.array([_mean(run.envs, name) for run in runs])


def _mean(envs: Sequence[EpisodeMeasure], name: str) -> float:
    return float(np.mean([getattr(env, name) for env in envs]))


def _equal_flops_pct(
    static: Sequence[Sequence[ArmRun]], grown: Sequence[Sequence[ArmRun]]
) -> float | None:
    """Return the accuracy of the static arm at the step with equal FLOPs to the growing arm."""
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
