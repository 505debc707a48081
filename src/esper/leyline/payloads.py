"""What each telemetry event carries: one frozen struct per event type.

Where and when (round, step, env, episode) stand in the envelope and never here. `Measured` is a
number that was taken from a run: None means never measured, and a value that was not finite is
written as null with its name listed in the envelope's `nonfinite`. `Volatile` marks what differs
between two equal runs: clocks, paths, hardware.
"""

from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from esper.leyline.rewards import RewardComponents

T = TypeVar("T")
Measured: TypeAlias = float | None
Volatile = Annotated[T, Meta(extra_json_schema={"x-volatile": True})]


class Payload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Base of every payload."""


# --- The run -------------------------------------------------------------------------------------


class TrainingStarted(Payload, frozen=True, kw_only=True):
    """The run begins: what will be trained, how much of it, and with what."""

    esper_version: str
    schema_version: int
    controller: str
    """The controller: ppo, heuristic, random, wait or periodic."""
    task: str
    preset: str | None
    data_source: str
    """`files`, `download`, `package` or `synthetic`."""
    topology: str
    host_params: int
    slot_ids: tuple[str, ...]
    num_rounds: int
    num_envs: int
    num_steps: int
    """Steps per episode."""
    seed: int
    reward_family: str
    reward_mode: str
    telemetry_level: str
    policy_params: int | None
    """Parameters of the policy network; None for controllers without one."""
    policy_device: Volatile[str]
    env_devices: Volatile[tuple[str, ...]]
    num_lanes: Volatile[int]
    amp_dtype: str | None
    compile_mode: str
    torch_version: Volatile[str]
    resumed_from_round: Volatile[int | None]
    """None in a log, as that of a resumed run equals that of one that was never interrupted;
    CHECKPOINT_LOADED reports where a run was resumed, and views fill it in here."""


class RunFinished(Payload, frozen=True, kw_only=True):
    """The run ends; the last run event of every complete log."""

    status: str
    """`completed`, `interrupted` or `failed`."""
    reason: str | None
    rounds_completed: int
    episodes_completed: int
    best_accuracy_pct: Measured
    final_accuracy_pct: Measured
    duration_s: Volatile[float]


class CheckpointSaved(Payload, frozen=True, kw_only=True):
    """A checkpoint is on disk, and the log is durable up to the seq it records."""

    rounds_completed: int
    log_seq: int
    is_best: bool
    path: Volatile[str]
    num_bytes: Volatile[int]


class CheckpointLoaded(Payload, frozen=True, kw_only=True):
    """A run was resumed from a checkpoint (operational)."""

    rounds_completed: int
    log_seq: int
    num_events_redone: int
    path: str
    num_rounds: int | None = None
    """Rounds that the run has from here on, which may be more than it began with."""


class EnvFailed(Payload, frozen=True, kw_only=True):
    """An env failed and is quarantined for the rest of the round."""

    phase: str
    """What the lane was doing: `train`, `validate`, `apply` or `build`."""
    batch: int | None
    slot_id: str | None
    layer: str | None
    error_type: str
    message: str


class SubscriberLagged(Payload, frozen=True, kw_only=True):
    """A live subscriber was too slow and lost events (operational)."""

    subscriber: str
    num_dropped: int
    first_dropped_seq: int
    last_dropped_seq: int


class LiveServerStopped(Payload, frozen=True, kw_only=True):
    """The process of the live server ended before the run, which goes on (operational)."""

    reason: str


# --- Steps ---------------------------------------------------------------------------------------


class SeedSnapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One occupied slot after a validation pass."""

    slot_id: str
    stage: str
    blueprint: str
    alpha: float
    steps_in_stage: int
    age_steps: int
    contribution_pp: Measured
    contribution_velocity_pp: Measured
    stage_improvement_pp: Measured
    interaction_sum_pp: Measured
    boost_received_pp: Measured
    upstream_alpha_sum: float
    downstream_alpha_sum: float
    gradient_norm: Measured
    gradient_ratio: Measured
    gradient_health: Measured
    has_vanishing_gradient: bool | None
    has_exploding_gradient: bool | None


class EpochCompleted(Payload, frozen=True, kw_only=True):
    """One env has trained one host epoch and validated it; the decision comes next."""

    train_loss: Measured
    train_accuracy_pct: Measured
    val_loss: Measured
    val_accuracy_pct: Measured
    host_gradient_norm: Measured
    network_gradient_norm: Measured
    """Host and measured seeds together."""
    seeds: tuple[SeedSnapshot, ...]


class HeadChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one head of the policy chose."""

    choice: str
    confidence: Measured
    """Probability of the choice among the valid ones."""
    entropy: Measured
    """Normalised to 0..1; 0 when only one choice was valid."""
    num_valid: int


class LastAction(Payload, frozen=True, kw_only=True):
    """One env's decision of this step and its result."""

    op: str
    effective_op: str
    slot_id: str | None
    """None for WAIT."""
    blueprint: str | None
    style: str | None
    tempo: str | None
    alpha_target: str | None
    alpha_speed: str | None
    alpha_curve: str | None
    succeeded: bool
    is_forced: bool
    """WAIT was the only valid op."""
    veto_reason: str | None
    failure_reason: str | None
    value_estimate: Measured
    op_probabilities: dict[str, Measured]
    heads: dict[str, HeadChoice]
    reward: Measured
    """Raw, before normalisation."""
    reward_components: RewardComponents


class CoalitionResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accuracy with exactly these seeds on."""

    seeds_on: tuple[str, ...]
    accuracy_pct: Measured
    loss: Measured


class CounterfactualMatrixComputed(Payload, frozen=True, kw_only=True):
    """Accuracies of the evaluated coalitions of seeds, from which contributions follow."""

    strategy: str
    """`full_factorial` or `leave_one_out`."""
    slot_ids: tuple[str, ...]
    coalitions: tuple[CoalitionResult, ...]
    committed_accuracy_pct: Measured


class CounterfactualUnavailable(Payload, frozen=True, kw_only=True):
    """Seeds are active, but their contributions could not be measured this step."""

    slot_ids: tuple[str, ...]
    reason: str


class ShapleyValue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One slot's share of the gain of all seeds."""

    slot_id: str
    mean_pp: Measured
    std_pp: Measured
    """Spread over the sampled permutations; 0 when exact."""
    num_samples: int


class ShapleyComputed(Payload, frozen=True, kw_only=True):
    """Attribution at the end of an episode."""

    is_exact: bool
    values: tuple[ShapleyValue, ...]


class GradientAnomaly(Payload, frozen=True, kw_only=True):
    """A host or seed gradient vanished, exploded or was not finite in this step."""

    kind: str
    """`vanishing`, `exploding` or `nonfinite`."""
    slot_id: str | None
    """None for the host."""
    layer: str | None
    norm: Measured


class ObservationStats(Payload, frozen=True, kw_only=True):
    """Statistics of the policy's observations in this step, over all envs."""

    host_mean: Measured
    host_std: Measured
    context_mean: Measured
    context_std: Measured
    slots_mean: Measured
    slots_std: Measured
    outlier_fraction: Measured
    near_clip_fraction: Measured
    clip_fraction: Measured
    nan_count: int
    inf_count: int
    normalization_drift: Measured


class TamiyoInitiated(Payload, frozen=True, kw_only=True):
    """The host has stabilised; growth decisions have a steady base from here on."""

    stable_steps: int
    required_steps: int
    val_loss: Measured


# --- Seeds ---------------------------------------------------------------------------------------


class SeedGerminated(Payload, frozen=True, kw_only=True):
    """A seed was planted."""

    slot_id: str
    seed_id: str
    blueprint: str
    num_params: int
    style: str
    tempo_steps: int
    alpha_target: float


class SeedGateEvaluated(Payload, frozen=True, kw_only=True):
    """A gate was evaluated, whether or not the seed passed."""

    slot_id: str
    seed_id: str
    gate: str
    target_stage: str
    passed: bool
    score: Measured
    checks_passed: tuple[str, ...]
    checks_failed: tuple[str, ...]


class SeedStageChanged(Payload, frozen=True, kw_only=True):
    """A seed moved to another stage."""

    slot_id: str
    seed_id: str
    from_stage: str
    to_stage: str
    alpha: float
    steps_in_from_stage: int
    accuracy_delta_pp: Measured


class SeedFossilized(Payload, frozen=True, kw_only=True):
    """A seed became a permanent part of its host."""

    slot_id: str
    seed_id: str
    blueprint: str
    num_params: int
    age_steps: int
    contribution_pp: Measured
    improvement_pp: Measured
    blending_delta_pp: Measured


class SeedPruned(Payload, frozen=True, kw_only=True):
    """A seed was removed."""

    slot_id: str
    seed_id: str
    blueprint: str
    reason: str
    initiator: str
    """`policy` or `governor`."""
    age_steps: int
    contribution_pp: Measured
    improvement_pp: Measured
    blending_delta_pp: Measured


class GovernorRollback(Payload, frozen=True, kw_only=True):
    """An env's host was restored to its last good snapshot."""

    reason: str
    """`nan`, `lobotomy` or `divergence`."""
    loss_at_panic: Measured
    loss_threshold: Measured
    consecutive_panics: int
    penalty: float
    is_penalty_attributed: bool
    """False when the segment had no step that could take the penalty."""
    blamed_step: int | None
    num_steps_forfeited: int
    pruned_slots: tuple[str, ...]
    active_slot: str | None = None
    """The slot whose seed was furthest on its way when the host was lost; None without one."""
    active_stage: str | None = None
    """The stage of that seed."""


class MorphologyCausalLog(Payload, frozen=True, kw_only=True):
    """One link of the chain from a proposal to what it did to the network."""

    phase: str
    """proposal, verdict, mutation, dispatch, commit, fossilization, rollback, cooldown or audit."""
    action_id: str
    """Same for all links of one chain: round, step, env, slot and op."""
    op: str
    slot_id: str
    blueprint: str | None
    observation_hash: str | None
    approved: bool | None
    reason: str | None


class TopologySlot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One occupied slot at the end of an episode."""

    slot_id: str
    seed_id: str
    blueprint: str
    stage: str
    """A seed in cooldown still occupies its slot, with 0 parameters."""
    alpha: float
    alpha_target: float
    """Where the current ramp ends; equal to alpha when it is at rest."""
    style: str
    num_params: int
    germinated_at_step: int
    kept_at_step: int | None
    """Step in which the seed was fossilized; None for seeds that are not permanent."""
    contribution_pp: Measured


class TopologyManifestRecorded(Payload, frozen=True, kw_only=True):
    """The network that an env has grown by the end of its episode; none for an env that failed.

    It is recorded after the last step's decision, as the parameters and fossils of EPISODE_OUTCOME
    are. A static arm of a comparison is built from it.
    """

    host_params: int
    total_params: int
    """Host and seeds."""
    slots: tuple[TopologySlot, ...]
    """Occupied slots only, in action order."""


# --- Rounds --------------------------------------------------------------------------------------


class EpisodeOutcome(Payload, frozen=True, kw_only=True):
    """How one env's episode ended; exactly one per episode."""

    status: str
    num_steps: int
    final_accuracy_pct: Measured
    best_accuracy_pct: Measured
    final_loss: Measured
    total_reward: Measured
    task_return: Measured = None
    """The total reward without shaping; None in logs from before it was reported."""
    stability: Measured
    param_ratio: float
    num_germinated: int
    num_pruned: int
    num_fossilized: int
    num_contributing_fossils: int
    num_rollbacks: int


class BatchEpochCompleted(Payload, frozen=True, kw_only=True):
    """A round is complete: the commit barrier for consumers that aggregate."""

    episodes_completed: int
    mean_accuracy_pct: Measured
    rolling_accuracy_pct: Measured
    mean_reward: Measured
    mean_task_return: Measured = None
    """Mean of the rewards without shaping; None in logs from before it was reported."""
    env_accuracies_pct: tuple[Measured, ...]
    env_rewards: tuple[Measured, ...]


class BatchStats(Payload, frozen=True, kw_only=True):
    """A round's growth and update in one row."""

    seeds_germinated: int
    seeds_fossilized: int
    seeds_pruned: int
    rollback_attempts: int
    unattributed_penalties: int
    update_performed: bool
    skip_reason: str | None


class SlotActivity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was done to one slot, and what the steps that did it earned."""

    slot_id: str
    num_decided: int
    """Ops that were carried out on the slot; vetoed ones count as waiting."""
    num_succeeded: int
    reward: Measured
    """Sum of the raw rewards of those steps, before a rollback's penalty."""


class ActionDistribution(Payload, frozen=True, kw_only=True):
    """How often each op was decided and how often it succeeded, over a round."""

    counts: dict[str, int]
    successes: dict[str, int]
    slots: tuple[SlotActivity, ...] = ()
    """In action order, over all envs."""


class MaskHitRates(Payload, frozen=True, kw_only=True):
    """How often each op was legal, over a round."""

    num_decisions: int
    legal_counts: dict[str, int]
    forced_count: int


class RewardSummary(Payload, frozen=True, kw_only=True):
    """The mean of each reward component over a round."""

    mean_components: RewardComponents
    mean_reward: Measured
    hindsight_credit: Measured
    reward_scale: Measured
    """What rewards are divided by: the deviation of discounted returns, after its update."""


class Throughput(Payload, frozen=True, kw_only=True):
    """How fast a round went."""

    env_steps: int
    train_samples: int
    val_samples: int
    env_steps_per_s: Volatile[float]
    feeder_wait_s: Volatile[float]
    duration_s: Volatile[float]


class PhaseTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time spent in one phase."""

    phase: str
    wall_ms: Volatile[float]
    cpu_ms: Volatile[float]


class PhaseProfileCompleted(Payload, frozen=True, kw_only=True):
    """Where the time of a step, or of a round's update, went."""

    phases: tuple[PhaseTime, ...]


class BlueprintScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Results of the seeds of one blueprint so far."""

    blueprint: str
    num_germinated: int
    num_fossilized: int
    num_pruned: int
    mean_contribution_pp: Measured
    mean_improvement_pp: Measured
    mean_age_steps: Measured


class ScoreboardUpdated(Payload, frozen=True, kw_only=True):
    """The standing of every blueprint that was ever tried in this run."""

    blueprints: tuple[BlueprintScore, ...]
    params_added: int
    compute_cost: float
    """Estimated cost of a grown host over a bare one, on average over all hosts so far."""


class TrendDetected(Payload, frozen=True, kw_only=True):
    """Base of the three trend events."""

    rolling_delta_pp: float
    rolling_accuracy_pct: float
    previous_rolling_accuracy_pct: float


class PlateauDetected(TrendDetected, frozen=True, kw_only=True):
    """Rolling accuracy hardly moved between two rounds."""


class DegradationDetected(TrendDetected, frozen=True, kw_only=True):
    """Rolling accuracy fell noticeably between two rounds."""


class ImprovementDetected(TrendDetected, frozen=True, kw_only=True):
    """Rolling accuracy rose noticeably between two rounds."""


class PerformanceDegradation(Payload, frozen=True, kw_only=True):
    """A round's accuracy fell well below the rolling mean."""

    accuracy_pct: float
    rolling_accuracy_pct: float
    drop_fraction: float
    threshold_fraction: float
    training_progress: float


# --- The policy's update -------------------------------------------------------------------------


class HeadUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One head over a whole update."""

    entropy: Measured
    """Normalised, over the steps where the head was available; None if there was none."""
    learnable_fraction: Measured
    """Share of steps in which the head mattered."""
    gradient_norm: Measured
    """None when no gradient reached the head, which is not 0."""
    ratio_max: Measured
    clip_fraction: Measured


class LstmHealth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size of the recurrent state."""

    h_rms: Measured
    c_rms: Measured
    h_env_rms_max: Measured
    c_env_rms_max: Measured
    h_abs_max: Measured
    c_abs_max: Measured
    has_nan: bool
    has_inf: bool


class PPOUpdateCompleted(Payload, frozen=True, kw_only=True):
    """The policy took at least one optimizer step."""

    policy_loss: Measured
    value_loss: Measured
    q_loss: Measured
    contribution_loss: Measured
    entropy: Measured
    floor_penalty: Measured
    gradient_norm: Measured
    """Before clipping."""
    kl_divergence: Measured
    """Per decision, of the joint policy, like the clip fractions and ratios below."""
    clip_fraction: Measured
    clip_fraction_positive: Measured
    clip_fraction_negative: Measured
    ratio_mean: Measured
    ratio_std: Measured
    ratio_min: Measured
    ratio_max: Measured
    log_prob_min: Measured
    log_prob_max: Measured
    explained_variance: Measured
    """Of realised returns, which contain no estimate of the critic; so are all returns below."""
    has_low_return_variance: bool
    """The variance of returns was under its floor, so explained variance says little."""
    value_nrmse: Measured
    value_return_correlation: Measured
    value_mean: Measured
    value_std: Measured
    value_min: Measured
    value_max: Measured
    td_error_mean: Measured
    td_error_std: Measured
    bellman_error: Measured
    return_mean: Measured
    return_std: Measured
    return_p10: Measured
    return_p50: Measured
    return_p90: Measured
    return_skewness: Measured
    advantage_mean: Measured
    advantage_std: Measured
    """Before normalisation, as is the mean."""
    advantage_skewness: Measured
    advantage_kurtosis: Measured
    advantage_positive_fraction: Measured
    is_advantage_std_floored: bool
    op_q_values: dict[str, Measured]
    q_spread: Measured
    heads: dict[str, HeadUpdate]
    value_gradient_norm: Measured
    q_gradient_norm: Measured
    nan_gradient_count: int
    inf_gradient_count: int
    lstm_update: LstmHealth | None
    lstm_rollout: LstmHealth | None
    learning_rate: float
    entropy_coef: float
    value_coef: float
    num_updates: int = 1
    """PPO updates made on the round's rollout; the metrics cover all of them."""
    num_optimizer_steps: int
    num_finiteness_skips: int
    kl_stop_epoch: int | None
    forced_fraction: Measured
    usable_steps: int
    rollback_count: int
    rollback_steps_forfeited: int
    update_ms: Volatile[float]


class LayerGradient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer of the policy network."""

    layer: str
    norm: Measured
    health: Measured
    zero_fraction: Measured
    nan_count: int
    inf_count: int


class LayerGradientsCollected(Payload, frozen=True, kw_only=True):
    """The policy's gradients per layer, for diagnosis after an anomaly."""

    layers: tuple[LayerGradient, ...]
    num_dead: int
    num_exploding: int


class RatioAnomaly(Payload, frozen=True, kw_only=True):
    """Base of the two ratio alarms."""

    ratio: Measured
    threshold: float
    worst_head: str | None


class RatioExplosionDetected(RatioAnomaly, frozen=True, kw_only=True):
    """The new policy makes some action far likelier than the old one did."""


class RatioCollapseDetected(RatioAnomaly, frozen=True, kw_only=True):
    """The new policy makes some action far less likely than the old one did."""


class ValueCollapseDetected(Payload, frozen=True, kw_only=True):
    """The critic is far off."""

    value_loss: Measured
    bellman_error: Measured
    threshold: float


class NumericalInstabilityDetected(Payload, frozen=True, kw_only=True):
    """Numbers of the update were not finite."""

    where: tuple[str, ...]
    """Metrics, heads or layers that were hit."""
    consecutive_skips: int
    is_halting: bool


class GradientPathologyDetected(Payload, frozen=True, kw_only=True):
    """The policy's gradient norm or health drifted from its running mean."""

    quantity: str
    """`norm` or `health`."""
    value: Measured
    running_mean: Measured
    drift_fraction: Measured


class EntropyCollapseDetected(Payload, frozen=True, kw_only=True):
    """A head's entropy is below its collapse threshold."""

    head: str
    entropy: Measured
    threshold: float
    consecutive_updates: int


class KlSpikeDetected(Payload, frozen=True, kw_only=True):
    """The update moved the policy further than intended."""

    kl_divergence: Measured
    threshold: float


class LstmAnomalyDetected(Payload, frozen=True, kw_only=True):
    """The recurrent state vanished, exploded or is not finite."""

    kind: str
    """`vanishing`, `exploding` or `nonfinite`."""
    state: str
    """`h` or `c`."""
    rms: Measured


class RewardHackingSuspected(Payload, frozen=True, kw_only=True):
    """A seed may be rewarded for more than its own share of the gain."""

    pattern: str
    """`attribution_ratio` or `ransomware`."""
    slot_id: str
    seed_id: str
    contribution_pp: Measured
    attributed_pp: Measured
    threshold: float


# --- Memory --------------------------------------------------------------------------------------


class AllocatorStats(Payload, frozen=True, kw_only=True):
    """A device allocator at the end of a round."""

    device: str
    allocated_bytes: Volatile[int]
    reserved_bytes: Volatile[int]
    num_retries: Volatile[int]
    num_ooms: Volatile[int]


class MemoryWarning(Payload, frozen=True, kw_only=True):
    """A device is nearly full."""

    device: str
    used_fraction: Volatile[float]
    threshold_fraction: float
    total_bytes: Volatile[int]
