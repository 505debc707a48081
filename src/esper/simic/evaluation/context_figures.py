"""Figures of an arm by context, and how soon its episodes reach a target."""

from collections.abc import Sequence
from statistics import fmean
from typing import Final, TypedDict

from esper.leyline.comparison import ContextFigures, EpisodeMeasure

__all__ = ["TargetFigures", "figures_by_context", "target_figures"]

GIGA: Final = 1e9


class TargetFigures(TypedDict):
    """How many episodes reached the target accuracy, and when."""

    reached_pct: float
    steps_to_target: float | None


def target_figures(envs: Sequence[EpisodeMeasure], target_pct: float) -> TargetFigures:
    """Return the share of episodes that reached the target, and their mean number of steps."""
    reached = [steps for env in envs if (steps := _steps_until(env, target_pct)) is not None]
    return {
        "reached_pct": 100.0 * len(reached) / len(envs),
        "steps_to_target": fmean(reached) if reached else None,
    }


def figures_by_context(
    envs: Sequence[EpisodeMeasure], target_pct: float
) -> tuple[ContextFigures, ...]:
    """Return the figures of each context, by name."""
    names = sorted({env.context for env in envs if env.context is not None})
    return tuple(
        _figures(name, [env for env in envs if env.context == name], target_pct) for name in names
    )


def _figures(name: str, envs: Sequence[EpisodeMeasure], target_pct: float) -> ContextFigures:
    return ContextFigures(
        context=name,
        num_episodes=len(envs),
        final_pct=fmean(env.final_pct for env in envs),
        task_return=fmean(env.task_return for env in envs),
        num_params_added=fmean(env.num_params_added for env in envs),
        train_gflops=fmean(env.train_flops for env in envs) / GIGA,
        **target_figures(envs, target_pct),
    )


def _steps_until(env: EpisodeMeasure, target_pct: float) -> int | None:
    """Return the number of steps until the test accuracy was first at the target."""
    return next(
        (step for step, value in enumerate(env.curve_pct, start=1) if value >= target_pct), None
    )
