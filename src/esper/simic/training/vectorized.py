"""The public entry point.

The names that tests and users may replace (`get_hub`, `RewardNormalizer`, `SharedBatchIterator`,
`PPOAgent`, `torch_amp`, `collect_per_layer_gradients`, `check_numerical_stability`) are looked up
here when a run is put together.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO, TypeAlias, Unpack

from torch import amp as torch_amp

from esper.leyline.config import (
    GovernorConfig,
    HostSchedule,
    Job,
    ProfilerConfig,
    TelemetryConfig,
)
from esper.leyline.rewards import LossRewardConfig, RewardConfig
from esper.leyline.stages import LifecycleRules
from esper.leyline.telemetry import Event
from esper.nissa.bus.hub import get_hub
from esper.runtime.batches import SharedBatchIterator
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.normalizers import RewardNormalizer
from esper.simic.telemetry.gradients import (
    check_numerical_stability,
    collect_per_layer_gradients,
)
from esper.simic.training import run
from esper.simic.training.arguments import DEFAULTS, layer_from_arguments
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.checkpoints.resuming import resolve_job
from esper.simic.training.run import RunJobOptions
from esper.simic.training.run_opening import POLICY_COMMAND
from esper.simic.training.run_result import TrainedPolicy, TrainingHistory, TrainingResult
from esper.tolaria.stopping import CallerEvent

__all__ = ["POLICY_COMMAND", "run_job", "train_ppo_vectorized"]

Table: TypeAlias = Mapping[str, object]
"""Some keys of a nested table of the configuration."""


def train_ppo_vectorized(
    *,
    task: str = DEFAULTS.task,
    preset: str | None = DEFAULTS.preset,
    n_episodes: int = DEFAULTS.n_episodes,
    n_envs: int = DEFAULTS.n_envs,
    max_epochs: int = DEFAULTS.max_epochs,
    slots: Sequence[str] = DEFAULTS.slots,
    blueprints: Sequence[str] = DEFAULTS.blueprints,
    max_seeds: int | None = DEFAULTS.max_seeds,
    contexts: Mapping[str, float] = DEFAULTS.contexts,
    seed: int = DEFAULTS.seed,
    group_id: str = DEFAULTS.group_id,
    device: str = DEFAULTS.device,
    devices: Sequence[str] | None = DEFAULTS.devices,
    data: str = DEFAULTS.data,
    data_dir: Path | str | None = DEFAULTS.data_dir,
    batch_size_per_env: int | None = DEFAULTS.batch_size_per_env,
    batch_mode: str | None = DEFAULTS.batch_mode,
    gpu_preload: bool = DEFAULTS.gpu_preload,
    gpu_preload_augment: bool = DEFAULTS.gpu_preload_augment,
    amp: bool = DEFAULTS.amp,
    amp_dtype: str = DEFAULTS.amp_dtype,
    tf32: bool = DEFAULTS.tf32,
    compile_mode: str = DEFAULTS.compile_mode,
    host_lr: float | None = DEFAULTS.host_lr,
    seed_lr: float | None = DEFAULTS.seed_lr,
    host_schedule: HostSchedule | Table = DEFAULTS.host_schedule,
    max_grad_norm: float | None = DEFAULTS.max_grad_norm,
    lifecycle: LifecycleRules | Table = DEFAULTS.lifecycle,
    governor: GovernorConfig | Table = DEFAULTS.governor,
    lstm_hidden_dim: int = DEFAULTS.lstm_hidden_dim,
    feature_dim: int = DEFAULTS.feature_dim,
    blind: bool = DEFAULTS.blind,
    init_from: Path | str | None = DEFAULTS.init_from,
    orthogonal_init: bool = DEFAULTS.orthogonal_init,
    lr: float = DEFAULTS.lr,
    lr_end: float | None = DEFAULTS.lr_end,
    clip_ratio: float = DEFAULTS.clip_ratio,
    gamma: float = DEFAULTS.gamma,
    gae_lambda: float = DEFAULTS.gae_lambda,
    ppo_updates_per_batch: int = DEFAULTS.ppo_updates_per_batch,
    recurrent_n_epochs: int = DEFAULTS.recurrent_n_epochs,
    num_minibatches: int = DEFAULTS.num_minibatches,
    advantage_norm: str = DEFAULTS.advantage_norm,
    target_kl: float | None = DEFAULTS.target_kl,
    value_clip: float | None = DEFAULTS.value_clip,
    policy_max_grad_norm: float = DEFAULTS.policy_max_grad_norm,
    weight_decay: float = DEFAULTS.weight_decay,
    value_coef: float = DEFAULTS.value_coef,
    value_coef_start: float | None = DEFAULTS.value_coef_start,
    value_warmup_batches: int = DEFAULTS.value_warmup_batches,
    entropy_coef: float = DEFAULTS.entropy_coef,
    entropy_coef_start: float | None = DEFAULTS.entropy_coef_start,
    entropy_coef_end: float | None = DEFAULTS.entropy_coef_end,
    entropy_coef_min: float = DEFAULTS.entropy_coef_min,
    entropy_anneal_episodes: int = DEFAULTS.entropy_anneal_episodes,
    entropy_coef_per_head: Mapping[str, float] = DEFAULTS.entropy_coef_per_head,
    floor_start: float = DEFAULTS.floor_start,
    floor_end: float = DEFAULTS.floor_end,
    total_train_steps: int | None = DEFAULTS.total_train_steps,
    reward_family: str = DEFAULTS.reward_family,
    reward_mode: str = DEFAULTS.reward_mode,
    reward: RewardConfig | Table = DEFAULTS.reward,
    loss_reward: LossRewardConfig | Table = DEFAULTS.loss_reward,
    episode_end: str | None = DEFAULTS.episode_end,
    plateau_threshold: float = DEFAULTS.plateau_threshold,
    improvement_threshold: float = DEFAULTS.improvement_threshold,
    telemetry: TelemetryConfig | Table = DEFAULTS.telemetry,
    name: str | None = DEFAULTS.name,
    tags: Mapping[str, str] = DEFAULTS.tags,
    telemetry_dir: Path | str = DEFAULTS.telemetry_dir,
    fsync: str = DEFAULTS.fsync,
    fsync_interval_ms: int = DEFAULTS.fsync_interval_ms,
    profiler: ProfilerConfig | Table = DEFAULTS.profiler,
    engine: str = DEFAULTS.engine,
    workers: int | None = DEFAULTS.workers,
    lanes: int | None = DEFAULTS.lanes,
    lane_deadline_s: float = DEFAULTS.lane_deadline_s,
    checkpoint_every: int = DEFAULTS.checkpoint_every,
    save_path: Path | str | None = DEFAULTS.save_path,
    resume_path: Path | str | None = DEFAULTS.resume_path,
    serve: str | bool | None = DEFAULTS.serve,
    serve_token: str | None = DEFAULTS.serve_token,
    serve_origins: Sequence[str] = DEFAULTS.serve_origins,
    sinks: Sequence[str] = DEFAULTS.sinks,
    sink_deadline_s: float = DEFAULTS.sink_deadline_s,
    quiet: bool = DEFAULTS.quiet,
    progress: bool = False,
    watch: TextIO | None = None,
    on_event: Callable[[Event], object] | None = None,
    ready_event: CallerEvent | None = None,
    shutdown_event: CallerEvent | None = None,
) -> TrainedPolicy:
    """Train a policy that decides what grows; return its agent and the summaries of its rounds.

    What is returned unpacks to `(agent, history)`, and has the attributes `run_dir`, `grown` (the
    best network) and `verdict`. There is a summary for each of the last 1,000 rounds; the log in
    `run_dir` has all of them.

    The parameters are the keys of `TrainingConfig` and `RunOptions`, where each is explained. What
    is passed is used; what is not given takes the checkpoint's value with `resume_path`, else the
    preset's, the task's or the configuration's own. A nested table may be given whole, as its
    struct, or in part, as a mapping: `reward={"rent_weight": 0.3}`. `n_episodes` counts rounds and
    `max_epochs` the steps of an episode.

    `progress` prints the progress of the run: to standard output, or with rich's display in a
    notebook; `watch` is another stream for it. With `serve=True`, or an address such as
    "127.0.0.1:8765", there is a dashboard as well. `sinks` are what gets the events as well, such
    as "tensorboard". `on_event` is called with every event, in order, on a thread of its own; if
    it raises, it is not called again and the run goes on. `ready_event` is set when everything is
    built; set `shutdown_event` to stop the run at the next cancellation point.
    """
    job, resumed = resolve_job([("train_ppo_vectorized", layer_from_arguments(locals()))])
    result = run_job(
        job,
        command=POLICY_COMMAND,
        resumed=resumed,
        watch=sys.stdout if progress and watch is None else watch,
        on_event=on_event,
        shutdown_event=shutdown_event,
        ready_event=ready_event,
    )
    assert result.agent is not None, "a policy has an agent"
    return TrainedPolicy(result.agent, TrainingHistory(result))


def run_job(job: Job, **options: Unpack[RunJobOptions]) -> TrainingResult:
    """Run a checked job, put together from the parts that this module names now."""
    return run.run_job(job, _parts(), **options)


def _parts() -> RunParts:
    return RunParts(
        get_hub=get_hub,
        reward_normalizer=RewardNormalizer,
        batch_iterator=SharedBatchIterator,
        agent=PPOAgent,
        autocast=torch_amp.autocast,
        collect_layers=collect_per_layer_gradients,
        check_stability=check_numerical_stability,
    )
