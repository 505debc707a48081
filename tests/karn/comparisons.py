"""Comparisons and training runs for reports, written by hand."""

import msgspec

from esper.leyline.comparison import ArmSummary, ComparisonReport, Contrast, Estimate
from esper.leyline.learning import LearningCurve, LearningReport, TrainingRun

FIGURE = Estimate(value=50.0, low=40.0, high=65.0)


def around(value: float, half: float = 1.0) -> Estimate:
    """Return a figure whose interval reaches as far to both sides."""
    return Estimate(value=value, low=value - half, high=value + half)


def arm(name: str, **changes: object) -> ArmSummary:
    """Return an arm of two runs."""
    plain = ArmSummary(
        arm=name,
        num_policies=0,
        num_runs=2,
        num_envs=4,
        num_failed=0,
        final_pct=FIGURE,
        best_pct=FIGURE,
        mean_pct=FIGURE,
        total_reward=FIGURE,
        task_return=FIGURE,
        num_params_added=7.0,
        train_gflops=1.0,
        wall_s=2.0,
        num_germinated=1.0,
        num_fossilized=1.0,
        num_pruned=0.0,
        num_fossils_measured=0,
        num_fossils_positive=0,
        equal_flops_pct=None,
        is_on_front=False,
        curve_pct=(10.0, 50.0),
        curve_low_pct=(9.0, 40.0),
        curve_high_pct=(12.0, 60.0),
    )
    return msgspec.structs.replace(plain, **changes)


def contrast(
    first: str, second: str, final_pp: Estimate, task_return: Estimate | None = FIGURE
) -> Contrast:
    """Return how two arms differ."""
    return Contrast(
        first=first,
        second=second,
        final_pp=final_pp,
        mean_pp=FIGURE,
        total_reward=FIGURE,
        task_return=task_return,
        probability=around(0.5, 0.1),
    )


def comparison(*arms: ArmSummary, **changes: object) -> ComparisonReport:
    """Return a comparison of two seeds."""
    plain = ComparisonReport(
        task="digits",
        preset=None,
        seeds=(1, 2),
        num_steps=2,
        num_envs=2,
        is_greedy=False,
        arms=arms,
        contrasts=(contrast(arms[0].arm, arms[1].arm, FIGURE),),
    )
    return msgspec.structs.replace(plain, **changes)


def curve(name: str, *runs: tuple[float | None, ...]) -> LearningCurve:
    """Return a curve whose mean is that of the first run, for tests that look at names."""
    return LearningCurve(name=name, runs=runs, mean=runs[0], low=runs[0], high=runs[0])


def learning(**changes: object) -> LearningReport:
    """Return two training runs."""
    run = TrainingRun(
        run_id="0000aaaa",
        task="digits",
        seed=1,
        num_rounds=2,
        status="completed",
        verdict="Finished, the policy learns",
        reasons=("mean reward +1.00",),
        alarms={"KL_SPIKE_DETECTED": 3},
    )
    other = msgspec.structs.replace(run, run_id="0000bbbb", seed=2, alarms={})
    plain = LearningReport(
        runs=(run, other),
        curves=(curve("mean_accuracy_pct", (10.0, 20.0), (30.0, None)),),
        entropies=(curve("op", (1.0, 0.5), (0.9, 0.8)),),
    )
    return msgspec.structs.replace(plain, **changes)
