"""Figures by context, time to a target, and distances from the oracle, in closed form."""

from collections.abc import Sequence

import pytest

from esper.leyline.comparison import ArmRun, EpisodeMeasure
from esper.leyline.config import Job, TrainingConfig
from esper.leyline.payloads import TopologyManifestRecorded
from esper.simic.evaluation.arms import Arm, ArmKind
from esper.simic.evaluation.context_figures import figures_by_context, target_figures
from esper.simic.evaluation.summary import summarize

EMPTY = TopologyManifestRecorded(host_params=1, total_params=1, slots=())


def measure(
    curve_pct: Sequence[float], *, context: str | None = None, task_return: float = 0.0
) -> EpisodeMeasure:
    return EpisodeMeasure(
        env_id=0,
        curve_pct=tuple(curve_pct),
        final_pct=curve_pct[-1],
        best_pct=max(curve_pct),
        mean_pct=sum(curve_pct) / len(curve_pct),
        num_params_added=10,
        train_flops=2_000_000_000,
        num_germinated=0,
        num_fossilized=0,
        num_pruned=0,
        num_fossils_measured=0,
        num_fossils_positive=0,
        total_reward=task_return,
        task_return=task_return,
        topology=EMPTY,
        context=context,
    )


def test_target_is_reached_with_the_first_step_at_it() -> None:
    envs = [measure([50.0, 80.0, 70.0]), measure([10.0, 79.9, 90.0]), measure([0.0, 0.0, 0.0])]

    found = target_figures(envs, 80.0)

    assert found["reached_pct"] == pytest.approx(200 / 3)
    assert found["steps_to_target"] == pytest.approx((2 + 3) / 2)
    assert target_figures(envs[2:], 80.0) == {"reached_pct": 0.0, "steps_to_target": None}


def test_contexts_are_averaged_apart() -> None:
    envs = [
        measure([60.0], context="b", task_return=1.0),
        measure([90.0], context="a", task_return=3.0),
        measure([80.0], context="b", task_return=2.0),
    ]

    first, second = figures_by_context(envs, 85.0)

    assert (first.context, first.num_episodes, first.final_pct) == ("a", 1, 90.0)
    assert (first.reached_pct, first.steps_to_target) == (100.0, 1.0)
    assert (second.context, second.num_episodes, second.final_pct) == ("b", 2, 70.0)
    assert (second.task_return, second.train_gflops, second.reached_pct) == (1.5, 2.0, 0.0)


def test_episodes_without_a_context_have_no_rows() -> None:
    assert figures_by_context([measure([60.0])], 50.0) == ()


def test_regret_and_gap_are_those_of_the_best_schedule_and_the_oracle() -> None:
    arms = [
        Arm(name="policy", command="ppo"),
        Arm(name="poor", command="wait", kind=ArmKind.SCHEDULE),
        Arm(name="good", command="wait", kind=ArmKind.SCHEDULE),
        Arm(name="oracle", command="wait", kind=ArmKind.ORACLE),
    ]
    returns = {"policy": 4.0, "poor": 0.0, "good": 2.0, "oracle": 6.0}
    runs = {
        (name, 0, seed): ArmRun(
            arm=name,
            stratum=0,
            seed=seed,
            wall_s=None,
            # The seeds differ, and the arms differ by the same on each.
            envs=(measure([50.0], task_return=value + seed),),
            num_failed=0,
        )
        for name, value in returns.items()
        for seed in range(4)
    }
    job = Job(training=TrainingConfig(task="digits", max_epochs=1, n_envs=1))

    policy, poor, good, oracle = summarize(job, arms, runs).arms

    assert policy.regret is not None
    assert policy.regret.value == pytest.approx(2.0)
    assert policy.regret.low == pytest.approx(2.0)
    assert policy.gap_closed is not None
    assert policy.gap_closed.value == pytest.approx((4.0 - 2.0) / (6.0 - 2.0))
    assert poor.gap_closed is not None
    assert poor.gap_closed.value == pytest.approx((0.0 - 2.0) / (6.0 - 2.0))
    # Compared with the other schedule.
    assert good.gap_closed is not None
    assert good.gap_closed.value == pytest.approx((2.0 - 0.0) / (6.0 - 0.0))
    assert (oracle.regret, oracle.gap_closed) == (None, None)
