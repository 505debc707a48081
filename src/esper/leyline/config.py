"""Configuration: what determines a run's result, and how one execution of it is run."""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from esper.leyline.ranges import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
)
from esper.leyline.rewards import (
    EpisodeEnd,
    LossRewardConfig,
    RewardConfig,
    RewardFamily,
    RewardMode,
)
from esper.leyline.slots import DEFAULT_SLOT_IDS
from esper.leyline.stages import LifecycleRules
from esper.leyline.tasks import BatchMode

__all__ = [
    "DEFAULT_SERVER_ADDRESS",
    "LATEST_RUN",
    "AdvantageNorm",
    "AmpDtype",
    "CompileMode",
    "DataSource",
    "EngineKind",
    "FsyncPolicy",
    "GovernorConfig",
    "HostSchedule",
    "Job",
    "LrCurve",
    "ProfilerConfig",
    "RunOptions",
    "TelemetryConfig",
    "TrainingConfig",
]

DEFAULT_SERVER_ADDRESS: Final = "127.0.0.1:8765"
LATEST_RUN: Final = "latest"
"""What commands accept in place of a run's name."""


class DataSource(StrEnum):
    """Where data may come from."""

    AUTO = "auto"
    REAL = "real"
    SYNTHETIC = "synthetic"


class AmpDtype(StrEnum):
    """Precision of the hosts under autocast."""

    AUTO = "auto"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    OFF = "off"


class CompileMode(StrEnum):
    """How the policy network is compiled; `auto` is off on the CPU."""

    AUTO = "auto"
    OFF = "off"
    DEFAULT = "default"
    REDUCE_OVERHEAD = "reduce-overhead"
    MAX_AUTOTUNE = "max-autotune"


class EngineKind(StrEnum):
    """What the envs of a run live in."""

    AUTO = "auto"
    """Processes where they are faster than threads."""
    THREADS = "threads"
    """Threads of one process."""
    PROCESSES = "processes"
    """Processes of this machine."""
    RAY = "ray"
    """Actors of a Ray cluster."""


class AdvantageNorm(StrEnum):
    """The decisions over which advantages are standardised."""

    ROUND = "round"
    MINIBATCH = "minibatch"


class FsyncPolicy(StrEnum):
    """When the log is forced to the disk."""

    ROUND = "round"
    INTERVAL = "interval"
    NEVER = "never"


class _Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class GovernorConfig(_Config, frozen=True, kw_only=True):
    """When a host counts as failed and is rolled back, and the penalty for it."""

    sensitivity: PositiveFloat = 6.0
    """Standard deviations above the mean loss."""
    loss_multiplier: PositiveFloat = 3.0
    absolute_threshold: PositiveFloat = 12.0
    history_window: Annotated[int, msgspec.Meta(ge=2)] = 20
    min_samples: Annotated[int, msgspec.Meta(ge=2)] = 10
    panics_to_rollback: PositiveInt = 3
    death_penalty: NonNegativeFloat = 10.0
    lobotomy_prior: NonNegativeFloat = 0.6
    """The mean loss must have been below this fraction of the random-guess loss."""
    lobotomy_tolerance: NonNegativeFloat = 0.065
    snapshot_every: PositiveInt = 5


class LrCurve(StrEnum):
    """How the learning rate of the hosts changes over an episode."""

    CONSTANT = "constant"
    COSINE = "cosine"
    """From the whole rate to 0 at the end of the episode."""


class HostSchedule(_Config, frozen=True, kw_only=True):
    """The learning rate of the hosts over an episode, the same for every controller."""

    curve: LrCurve = LrCurve.CONSTANT
    warmup_steps: NonNegativeInt = 0
    """Steps at the start of an episode with a rate below the whole one, which rises linearly."""
    rewarmup_steps: NonNegativeInt = 0
    """The same after each change of topology: a seed begins or ceases to change the output."""


class TelemetryConfig(_Config, frozen=True, kw_only=True):
    """Which events are emitted."""

    level: str = "normal"
    auto_escalate: bool = True
    escalation_steps: PositiveInt = 5
    lifecycle_only: bool = False
    """Of the per-step events, only those of seeds."""
    gradient_stride: PositiveInt = 10
    """Batches between two gradient measurements; gates and features depend on it."""


class ProfilerConfig(_Config, frozen=True, kw_only=True):
    """Profiler settings."""

    phases: bool = True
    torch: bool = False
    """Write torch profiler traces of all threads, for a trace viewer."""
    torch_dir: str = "./profiler_traces"
    """Directory for traces, relative to the run directory."""
    torch_wait: NonNegativeInt = 1
    """Steps before the first trace, and between two."""
    torch_warmup: PositiveInt = 1
    """Warm-up steps: recorded and discarded, as the profiler is slow to start."""
    torch_active: PositiveInt = 3
    """Steps recorded in one trace."""
    torch_repeat: NonNegativeInt = 1
    """Number of traces; 0 repeats until the run ends."""
    torch_record_shapes: bool = False
    torch_profile_memory: bool = False
    torch_with_stack: bool = False
    torch_summary: bool = False
    """Write a table of the costliest operations beside each trace."""


class TrainingConfig(_Config, frozen=True, kw_only=True):
    """Everything that the result of a run depends on: equal configs give equal bits."""

    # What
    task: str = "digits"
    preset: str | None = None
    n_episodes: PositiveInt = 100
    """Rounds (the name is the public entry point's)."""
    n_envs: PositiveInt = 4
    max_epochs: PositiveInt = 150
    """Steps per episode (the name is the public entry point's)."""
    slots: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = DEFAULT_SLOT_IDS
    blueprints: tuple[str, ...] = ()
    """Registered blueprints that seeds may have beside those of every run."""
    max_seeds: PositiveInt | None = None
    """Seeds alive or fossilized at once in one env; None is unlimited."""
    contexts: dict[str, NonNegativeFloat] = {}
    """Weights of the contexts that episodes draw, for a task that has any; a single one is in every
    episode. Empty takes the task's weights."""
    seed: NonNegativeInt = 42
    group_id: str = "default"
    # Data
    data: DataSource = DataSource.AUTO
    batch_size_per_env: PositiveInt | None = None
    """None uses the task's value."""
    batch_mode: BatchMode | None = None
    """None uses the task's value."""
    gpu_preload: bool = False
    gpu_preload_augment: bool = False
    # Devices and precision
    device: str = "auto"
    """The policy's device; `auto` selects CUDA if available."""
    devices: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] | None = None
    """The envs' devices, assigned round-robin; None uses the policy's device."""
    amp: bool = False
    amp_dtype: AmpDtype = AmpDtype.AUTO
    tf32: bool = False
    """Multiply float32 matrices on a GPU in TF32: faster, with 10 bits of mantissa."""
    compile_mode: CompileMode = CompileMode.AUTO
    # Hosts and seeds
    host_lr: PositiveFloat | None = None
    """None uses the task's value; the same holds for seed_lr."""
    seed_lr: PositiveFloat | None = None
    host_schedule: HostSchedule = HostSchedule()
    max_grad_norm: PositiveFloat | None = 1.0
    """Gradient clipping norm, applied to the host and each seed separately; None disables it."""
    lifecycle: LifecycleRules = LifecycleRules()
    governor: GovernorConfig = GovernorConfig()
    # Policy
    lstm_hidden_dim: PositiveInt = 512
    feature_dim: PositiveInt = 512
    blind: bool = False
    """Show the policy of each env the observation of another one: what is looking worth?"""
    init_from: str | None = None
    """The checkpoint, run or builtin policy whose weights the new policy begins with. It takes the
    scales of observations, rewards and values that these belong to, and has an optimizer and
    schedules of its own."""
    orthogonal_init: bool = True
    """Initial weights of the policy: orthogonal, or uniform as PyTorch initialises layers."""
    # Update
    lr: PositiveFloat = 3e-4
    lr_end: NonNegativeFloat | None = None
    """Learning rate at the end of the run, approached linearly by round; None keeps lr."""
    clip_ratio: PositiveFraction = 0.2
    gamma: PositiveFraction = 0.995
    gae_lambda: PositiveFraction = 0.98
    ppo_updates_per_batch: PositiveInt = 1
    """PPO updates on each round's rollout; a KL stop ends the series. Schedules count rounds."""
    recurrent_n_epochs: PositiveInt = 4
    """Passes over the rollout within one update."""
    num_minibatches: PositiveInt = 4
    """Minibatches of a pass, each of whole env rows; at most one per env."""
    advantage_norm: AdvantageNorm = AdvantageNorm.ROUND
    target_kl: PositiveFloat | None = 0.1
    """KL divergence per decision; an update ends before a step that starts from 1.5 times it."""
    value_clip: PositiveFloat | None = None
    """How far a value may move in an update, in deviations of returns; None does not clip."""
    policy_max_grad_norm: PositiveFloat = 5.0
    weight_decay: NonNegativeFloat = 0.0
    value_coef: NonNegativeFloat = 0.5
    value_coef_start: NonNegativeFloat | None = None
    """None starts the warm-up at a tenth of value_coef."""
    value_warmup_batches: NonNegativeInt = 10
    entropy_coef: NonNegativeFloat = 0.05
    entropy_coef_start: NonNegativeFloat | None = None
    entropy_coef_end: NonNegativeFloat | None = None
    entropy_coef_min: NonNegativeFloat = 0.01
    entropy_anneal_episodes: NonNegativeInt = 0
    entropy_coef_per_head: dict[str, NonNegativeFloat] = {}
    """Replaces the entropy weight of single heads."""
    floor_start: Fraction = 1.0
    """Factor of the exploration floors at the start of annealing."""
    floor_end: Fraction = 0.05
    """The same at its end."""
    total_train_steps: PositiveInt | None = None
    """Rounds over which learning rate, floor penalty and, where entropy is not annealed, the floors
    are scheduled; None takes the run's number of rounds."""
    # Reward
    reward_family: RewardFamily = RewardFamily.CONTRIBUTION
    reward_mode: RewardMode = RewardMode.SHAPED
    reward: RewardConfig = RewardConfig()
    loss_reward: LossRewardConfig = LossRewardConfig()
    episode_end: EpisodeEnd | None = None
    """None terminates episodes whose reward has a terminal term, and bootstraps others."""
    plateau_threshold: NonNegativeFloat = 0.5
    improvement_threshold: NonNegativeFloat = 2.0
    # Observation of the run
    telemetry: TelemetryConfig = TelemetryConfig()


class RunOptions(_Config, frozen=True, kw_only=True):
    """Options for one execution of a run; none of them affects the result."""

    name: str | None = None
    """What people call the run; commands take it in place of the run's directory."""
    tags: dict[str, str] = {}
    engine: EngineKind = EngineKind.AUTO
    workers: PositiveInt | None = None
    """Processes or Ray actors; None uses one per env, at most one per core."""
    lanes: PositiveInt | None = None
    """Threads per worker. None uses one in a process or actor, and with the engine `threads` one
    per env, at most one per core."""
    lane_deadline_s: PositiveFloat = 60.0
    telemetry_dir: str = "./runs"
    fsync: FsyncPolicy = FsyncPolicy.ROUND
    fsync_interval_ms: PositiveInt = 100
    data_dir: str | None = None
    checkpoint_every: PositiveInt = 1
    """Rounds between two checkpoints."""
    save_path: str | None = None
    resume_path: str | None = None
    """A checkpoint, a run (directory, id, prefix or name), or `latest`."""
    serve: str | None = None
    """HOST:PORT of the live server; None disables it."""
    serve_token: str | None = None
    """The token itself, or `@FILE`; None uses the environment's `ESPER_SERVE_TOKEN`, if any."""
    serve_origins: tuple[str, ...] = ()
    """Origins of other pages that may connect, such as http://dash.example:3000."""
    sinks: tuple[str, ...] = ()
    """What gets the events as well, each in a process of its own: `tensorboard`, `wandb`, `jsonl`
    or the name of a plug-in, and behind a colon its directory, project or path."""
    sink_deadline_s: PositiveFloat = 60.0
    """Seconds after which a sink that takes no events is ended."""
    quiet: bool = False
    profiler: ProfilerConfig = ProfilerConfig()


class Job(_Config, frozen=True, kw_only=True):
    """A run: its training configuration and its execution options."""

    training: TrainingConfig = TrainingConfig()
    run: RunOptions = RunOptions()
