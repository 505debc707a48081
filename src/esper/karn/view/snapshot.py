"""The structs that console, dashboard and report get from the view model.

None always means "not measured" and is never replaced by a number.
"""

from collections.abc import Iterator
from itertools import zip_longest
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from esper.karn.view.thresholds import Grade, Threshold
from esper.leyline.payloads import AllocatorStats, BlueprintScore, TrainingStarted

__all__ = [
    "ActionMix",
    "ActionView",
    "AlarmView",
    "BusView",
    "CoalitionView",
    "EnvAttention",
    "EnvDetail",
    "EnvView",
    "GrowthView",
    "HeadView",
    "OutcomeView",
    "Patch",
    "PhaseView",
    "PolicyView",
    "ProgressView",
    "Reason",
    "ResourceView",
    "RoundView",
    "RunView",
    "SeedView",
    "SegmentView",
    "SlotView",
    "Snapshot",
    "StepView",
    "Verdict",
    "patch_parts",
]

T = TypeVar("T")

Measured: TypeAlias = float | None


class _View(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    pass


class RunView(_View, frozen=True, kw_only=True):
    """The configuration of the run."""

    run_id: str
    group: str
    started_ts: float
    facts: TrainingStarted
    """From TRAINING_STARTED; after a resume, round counts are from CHECKPOINT_LOADED."""


class ProgressView(_View, frozen=True, kw_only=True):
    """Position, rate and status of the run."""

    status: str
    """`waiting`, `running`, `completed`, `interrupted` or `failed`."""
    reason: str | None
    round: int | None
    step: int | None
    num_rounds: int | None
    num_steps: int | None
    rounds_completed: int
    episodes_completed: int | None
    fraction: Measured
    """Completed fraction of the whole run, from 0 to 1."""
    elapsed_s: Measured
    eta_s: Measured
    steps_per_s: Measured
    """Summed over all envs."""
    last_event_ts: Measured
    usual_pause_s: Measured
    """The longest pause between recent events, to which the current silence is compared."""
    accuracy_pct: Measured
    """Mean of the envs' latest validation accuracies."""
    best_accuracy_pct: Measured
    last_checkpoint_round: int | None
    duration_s: Measured
    """From RUN_FINISHED."""


class Reason(_View, frozen=True, kw_only=True):
    """One reason for a verdict."""

    grade: Grade
    text: str
    panel: str
    """The dashboard panel with the details."""


class Verdict(_View, frozen=True, kw_only=True):
    """Whether the run is alive, is learning and needs attention, with the top reasons."""

    headline: str
    grade: Grade
    alive: str
    """`waiting`, `live`, `slow`, `silent`, `completed`, `interrupted` or `failed`."""
    alive_grade: Grade
    learning: str
    """`collecting`, `rising`, `rising, accuracy falling`, `flat`, `falling` or `not learning`."""
    learning_grade: Grade
    attention: str
    """`none`, `watch` or `act`."""
    attention_grade: Grade
    silence_s: Measured
    reasons: tuple[Reason, ...]


class HeadView(_View, frozen=True, kw_only=True):
    """Metrics of one policy head in a round's update."""

    entropy: Measured
    learnable_fraction: Measured
    gradient_norm: Measured
    """None if no gradient reached the head, as opposed to a norm of 0."""


class PolicyView(_View, frozen=True, kw_only=True):
    """Metrics of a round's policy update that are relevant to an operator."""

    kl_divergence: Measured
    clip_fraction: Measured
    value_nrmse: Measured
    explained_variance: Measured
    has_low_return_variance: bool
    gradient_norm: Measured
    policy_loss: Measured
    value_loss: Measured
    entropy: Measured
    ratio_max: Measured
    learning_rate: float
    entropy_coef: float
    kl_stop_epoch: int | None
    num_optimizer_steps: int
    update_ms: float
    heads: dict[str, HeadView]


class ActionMix(_View, frozen=True, kw_only=True):
    """Counts of decided and successful actions by op."""

    counts: dict[str, int]
    successes: dict[str, int]


class RoundView(_View, frozen=True, kw_only=True):
    """One round: accuracies and rewards over its envs, growth, update."""

    round: int
    mean_accuracy_pct: Measured = None
    low_accuracy_pct: Measured = None
    high_accuracy_pct: Measured = None
    rolling_accuracy_pct: Measured = None
    mean_reward: Measured = None
    low_reward: Measured = None
    high_reward: Measured = None
    mean_task_return: Measured = None
    """Mean reward without shaping."""
    num_failed: int = 0
    num_rollbacks: int = 0
    num_germinated: int | None = None
    num_fossilized: int | None = None
    num_pruned: int | None = None
    is_update_performed: bool | None = None
    skip_reason: str | None = None
    actions: ActionMix | None = None
    policy: PolicyView | None = None
    env_steps_per_s: Measured = None
    feeder_wait_s: Measured = None
    duration_s: Measured = None


class StepView(_View, frozen=True, kw_only=True):
    """One step of the current round: accuracies over the envs."""

    step: int
    num_envs: int
    mean_accuracy_pct: float
    low_accuracy_pct: float
    high_accuracy_pct: float


class SlotView(_View, frozen=True, kw_only=True):
    """A slot and its seed."""

    slot_id: str
    stage: str
    """DORMANT for an empty slot."""
    blueprint: str | None
    alpha: Measured
    steps_in_stage: int | None
    contribution_pp: Measured
    gradient_health: Measured
    has_gradient_trouble: bool | None


class ActionView(_View, frozen=True, kw_only=True):
    """An action of the policy and its result."""

    step: int | None
    op: str
    slot_id: str | None
    blueprint: str | None
    succeeded: bool
    is_forced: bool
    note: str | None
    """Why the action was vetoed or failed."""
    reward: Measured
    confidence: Measured
    """Probability of the op."""


class OutcomeView(_View, frozen=True, kw_only=True):
    """The outcome of an episode."""

    status: str
    final_accuracy_pct: Measured
    best_accuracy_pct: Measured
    total_reward: Measured
    task_return: Measured
    """The total reward without shaping."""
    param_ratio: float
    num_fossilized: int
    num_pruned: int
    num_rollbacks: int


class EnvView(_View, frozen=True, kw_only=True):
    """One env for the grid; everything except `previous` belongs to the current episode."""

    env_id: int
    episode_id: int | None
    round: int | None
    step: int | None
    context: str | None
    """The variant of the task, which the policy is not told; None for most tasks."""
    status: str
    """`running`, `stalled`, `degraded`, `rolled back`, `failed` or `done`."""
    accuracy_pct: Measured
    best_accuracy_pct: Measured
    steps_since_best: int
    loss: Measured
    sparkline: tuple[Measured, ...]
    last_reward: Measured
    total_reward: Measured
    task_return: Measured
    """The total reward without shaping."""
    slots: tuple[SlotView, ...]
    last_action: ActionView | None
    num_germinated: int
    num_pruned: int
    num_fossilized: int
    num_rollbacks: int
    failure: str | None
    outcome: OutcomeView | None
    previous: OutcomeView | None


class SegmentView(_View, frozen=True, kw_only=True):
    """Consecutive steps that a slot spent in one stage."""

    stage: str
    blueprint: str | None
    first_step: int
    last_step: int
    alphas: tuple[Measured, ...]
    """One per step."""


class CoalitionView(_View, frozen=True, kw_only=True):
    """Accuracy with exactly these seeds enabled."""

    seeds_on: tuple[str, ...]
    accuracy_pct: Measured


class EnvDetail(_View, frozen=True, kw_only=True):
    """One env for the drill-down; all of it belongs to the current episode."""

    env_id: int
    episode_id: int | None
    steps: tuple[int, ...]
    accuracies_pct: tuple[Measured, ...]
    rewards: tuple[Measured, ...]
    lanes: dict[str, tuple[SegmentView, ...]]
    """The stage segments of every slot."""
    contributions_pp: dict[str, Measured]
    """Accuracy with all seeds enabled minus accuracy with this one disabled."""
    shapley_pp: dict[str, Measured]
    coalitions: tuple[CoalitionView, ...]
    coalitions_step: int | None
    unavailable_reason: str | None
    committed_accuracy_pct: Measured
    reward_components: dict[str, float]
    """Sums over the episode; components that were always zero are omitted."""
    actions: tuple[ActionView, ...]
    """Newest last."""


class SeedView(_View, frozen=True, kw_only=True):
    """The lifecycle of one seed."""

    seed_id: str
    env_id: int
    round: int
    slot_id: str
    blueprint: str
    num_params: int
    stages: tuple[tuple[str, int], ...]
    """Each stage with its first step, starting with germination."""
    last_step: int
    fate: str
    """`growing`, `fossilized`, `pruned`, or `ended` if the episode ended first."""
    reason: str | None
    contribution_pp: Measured


class AlarmView(_View, frozen=True, kw_only=True):
    """An alarm and the number of its occurrences."""

    event_type: str
    severity: str
    env_id: int | None
    text: str
    """Description of the latest occurrence."""
    count: int
    first_ts: float
    last_ts: float
    round: int | None
    step: int | None
    seq: int


class EnvAttention(_View, frozen=True, kw_only=True):
    """The rank of an env in the grid, by descending score, and the reasons for it."""

    env_id: int
    score: int
    grade: Grade
    """The worst grade among the reasons."""
    reasons: tuple[str, ...]


class GrowthView(_View, frozen=True, kw_only=True):
    """Seed counts and growth over the whole run."""

    num_germinated: int
    num_fossilized: int
    num_pruned: int
    blueprints: tuple[BlueprintScore, ...] | None
    params_added: int | None
    compute_cost: Measured


class PhaseView(_View, frozen=True, kw_only=True):
    """Time spent in one phase of the latest step or update."""

    phase: str
    wall_ms: float
    cpu_ms: float


class ResourceView(_View, frozen=True, kw_only=True):
    """Time and memory."""

    phases: tuple[PhaseView, ...]
    allocators: tuple[AllocatorStats, ...]


class BusView(_View, frozen=True, kw_only=True):
    """The event stream itself."""

    num_events: int
    last_seq: int | None
    events_per_s: Measured
    """Computed from the timestamps of recent events."""
    num_missed: int
    """Events missing from the sequence of the run's events."""
    num_unreadable: int
    """Lines that are not valid events of this schema version."""
    num_dropped: int
    """Events that slow live subscribers lost; the log file has them."""
    counts: dict[str, int]


class Snapshot(_View, frozen=True, kw_only=True):
    """The whole view."""

    version: int
    now: float
    run: RunView | None
    progress: ProgressView
    verdict: Verdict
    rounds: tuple[RoundView, ...]
    steps: tuple[StepView, ...]
    """Of the current round."""
    live_actions: ActionMix
    """Of the current round."""
    envs: tuple[EnvView, ...]
    """Sorted by env id; `attention` has the display order."""
    attention: tuple[EnvAttention, ...]
    seeds: tuple[SeedView, ...]
    growth: GrowthView
    alarms: tuple[AlarmView, ...]
    """Newest first."""
    resources: ResourceView
    bus: BusView


class Patch(_View, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="patch"):
    """The changes since a version; absent sections have not changed.

    `rounds`, `steps`, `envs` and `seeds` contain changed entries by key; the client keeps the
    others unless `replaced` contains the section's name.
    """

    version: int
    now: float
    progress: ProgressView
    verdict: Verdict
    replaced: tuple[str, ...] = ()
    thresholds: dict[str, Threshold] | UnsetType = UNSET
    run: RunView | UnsetType = UNSET
    rounds: dict[int, RoundView] | UnsetType = UNSET
    steps: dict[int, StepView] | UnsetType = UNSET
    live_actions: ActionMix | UnsetType = UNSET
    envs: dict[int, EnvView] | UnsetType = UNSET
    attention: tuple[EnvAttention, ...] | UnsetType = UNSET
    seeds: dict[int, SeedView] | UnsetType = UNSET
    growth: GrowthView | UnsetType = UNSET
    alarms: tuple[AlarmView, ...] | UnsetType = UNSET
    resources: ResourceView | UnsetType = UNSET
    bus: BusView | UnsetType = UNSET
    detail: EnvDetail | UnsetType = UNSET


def patch_parts(patch: Patch, num_rounds: int, num_seeds: int) -> Iterator[Patch]:
    """Yield patches with the same effect, each with a bounded number of rounds and of seeds."""
    rounds, seeds = _in_parts(patch.rounds, num_rounds), _in_parts(patch.seeds, num_seeds)
    yield msgspec.structs.replace(
        patch, rounds=next(rounds, patch.rounds), seeds=next(seeds, patch.seeds)
    )
    for more_rounds, more_seeds in zip_longest(rounds, seeds, fillvalue=UNSET):
        yield Patch(
            version=patch.version,
            now=patch.now,
            progress=patch.progress,
            verdict=patch.verdict,
            rounds=more_rounds,
            seeds=more_seeds,
        )


def _in_parts(rows: dict[int, T] | UnsetType, num_rows: int) -> Iterator[dict[int, T]]:
    """Yield the rows of a section in parts, the newest first."""
    if isinstance(rows, UnsetType):
        return
    numbers = sorted(rows, reverse=True)
    for start in range(0, len(numbers), num_rows):
        yield {number: rows[number] for number in numbers[start : start + num_rows]}
