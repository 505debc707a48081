"""Comparison results: arms, their runs, and confidence intervals of the differences."""

from collections import Counter
from os.path import commonprefix
from pathlib import PurePath

import msgspec

from esper.leyline.learning import LearningReport
from esper.leyline.payloads import TopologyManifestRecorded
from esper.leyline.schedules import Schedule

__all__ = [
    "ArmRun",
    "ArmSummary",
    "ComparisonReport",
    "ContextFigures",
    "Contrast",
    "EpisodeMeasure",
    "Estimate",
]


class EpisodeMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """One env's episode; accuracies are on the test split, which no decision depends on."""

    env_id: int
    curve_pct: tuple[float, ...]
    """Accuracy after each step."""
    final_pct: float
    best_pct: float
    """At the step with the best validation accuracy."""
    mean_pct: float
    """Area under the curve, per step."""
    num_params_added: int
    train_flops: int
    """FLOPs of forward and backward passes over all batches, without the optimizers."""
    num_germinated: int
    num_fossilized: int
    num_pruned: int
    num_fossils_measured: int
    """Fossils whose contribution the last step has measured."""
    num_fossils_positive: int
    """Measured fossils with a positive contribution."""
    total_reward: float
    task_return: float
    """The reward without shaping."""
    topology: TopologyManifestRecorded
    """The network at the end, as the event of an episode records it."""
    context: str | None = None
    """The variant of the task; None for a task without contexts."""
    actions: Schedule = ()
    """What was done to the env, step by step."""


class ArmRun(msgspec.Struct, frozen=True, kw_only=True):
    """One arm under one seed."""

    arm: str
    stratum: int
    """Index of the arm's checkpoint used in this run; 0 where there is one or none."""
    seed: int
    wall_s: float | None
    """Volatile, as it depends on the machine; None if other runs ran concurrently."""
    envs: tuple[EpisodeMeasure, ...]
    """Failed envs are not included."""
    num_failed: int


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A point estimate with its 95% confidence interval."""

    value: float
    low: float
    high: float


class ContextFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm reached in one context: plain means over its episodes."""

    context: str
    num_episodes: int
    final_pct: float
    task_return: float
    num_params_added: float
    train_gflops: float
    reached_pct: float
    """Share of the episodes that reached the task's target accuracy."""
    steps_to_target: float | None
    """Mean number of steps until then, of those that did; None if none did."""


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary statistics of an arm; the value of a run is the mean over its envs."""

    arm: str
    num_policies: int
    """Trained policies that the arm's runs are divided among; 0 for arms without a policy."""
    num_runs: int
    num_envs: int
    num_failed: int
    final_pct: Estimate
    """Interquartile means, here and below."""
    best_pct: Estimate
    mean_pct: Estimate
    total_reward: Estimate
    num_params_added: float
    """Plain means, here and below."""
    train_gflops: float
    wall_s: float | None
    """Mean over the runs that ran without others at the same time."""
    num_germinated: float
    num_fossilized: float
    num_pruned: float
    num_fossils_measured: int
    """Over all envs, here and below."""
    num_fossils_positive: int
    equal_flops_pct: float | None
    """Accuracy at the step at which it has used as many FLOPs as the arm it copies, if any."""
    is_on_front: bool
    """The arm is on the Pareto front of accuracy and parameter count."""
    curve_pct: tuple[float, ...]
    """Mean over all envs, step by step."""
    curve_low_pct: tuple[float, ...]
    """Quartiles over runs, step by step, here and below."""
    curve_high_pct: tuple[float, ...]
    task_return: Estimate | None = None
    """Interquartile mean; None in reports of versions that did not measure it."""
    reached_pct: float | None = None
    """Share of the episodes that reached the task's target accuracy."""
    steps_to_target: float | None = None
    """Mean number of steps until then, of those that did."""
    contexts: tuple[ContextFigures, ...] = ()
    """By name; empty for a task without contexts."""
    regret: Estimate | None = None
    """Task return of the oracle minus its own; None without an oracle arm."""
    gap_closed: Estimate | None = None
    """Its gain over the best schedule, as a share of the oracle's; None without both arms."""

    @property
    def positive_fossils_pct(self) -> float | None:
        """Return the share of useful fossils; None where none was measured."""
        if not self.num_fossils_measured:
            return None
        return 100.0 * self.num_fossils_positive / self.num_fossils_measured


class Contrast(msgspec.Struct, frozen=True, kw_only=True):
    """The first arm minus the second, run by run of the same seed."""

    first: str
    second: str
    final_pp: Estimate
    """Mean differences, here and below."""
    mean_pp: Estimate
    total_reward: Estimate
    probability: Estimate
    """Probability that a run of the first arm ends with higher accuracy than one of the second."""
    task_return: Estimate | None = None
    """Mean difference; None in reports of versions that did not measure it."""


class ComparisonReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison of arms on one task."""

    task: str
    preset: str | None
    seeds: tuple[int, ...]
    num_steps: int
    num_envs: int
    """Per run."""
    is_greedy: bool
    target_pct: float | None = None
    """The accuracy that episodes are to reach; None in reports of older versions."""
    arms: tuple[ArmSummary, ...]
    contrasts: tuple[Contrast, ...]
    learning: LearningReport | None = None
    """Learning curves of the policies, if their training runs were given."""

    def labels(self) -> dict[str, str]:
        """Return the shortest unambiguous name of each arm."""
        names = [_names_of(arm.arm) for arm in self.arms]
        taken = Counter(name for each in names for name in set(each))
        return {
            each[-1]: next(name for name in each if taken[name] == 1 or name == each[-1])
            for each in names
        }


def _names_of(arm: str) -> tuple[str, str, str]:
    """Return an arm's kind, its kind with what its checkpoints' names begin with, and all of it."""
    kind, _, paths = arm.partition(":")
    stems = [PurePath(path).stem for path in paths.split(",")]
    shared = commonprefix(stems)  # noqa: RUF071 - letter by letter: these are names, not paths
    if len(stems) > 1:
        shared = shared.rstrip("-_.0123456789")
    return kind, f"{kind}:{shared}" if shared else arm, arm
