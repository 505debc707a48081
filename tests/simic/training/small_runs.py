"""Whole runs of a task so small that a step takes milliseconds."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from esper.leyline.errors import EsperError
from esper.leyline.jobs import merge_job
from esper.leyline.legality import ActionRules
from esper.leyline.messages import Phase, StepDecision
from esper.leyline.payloads import Payload, PPOUpdateCompleted
from esper.leyline.tasks import CnnHostSpec, task_named
from esper.leyline.telemetry import Event, EventType, decode_event
from esper.runtime.datasets import Split, TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import all_tasks, register_task
from esper.simic.agent import ppo_update
from esper.simic.agent.ppo_metrics import PPOMetrics, ppo_update_event
from esper.simic.attribution.configurations import AblationPlan
from esper.simic.training import action_execution, env_work, vectorized_trainer
from esper.simic.training.counterfactual_eval import materialize_attribution
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.simic.training.policy_controller import PolicyController
from esper.simic.training.run_result import TrainingResult
from esper.simic.training.vectorized import run_job

torch.set_num_threads(1)

TASK = "four_quarters"
NUM_TRAIN, NUM_VAL = 24, 12

_SPEC = msgspec.structs.replace(
    task_named("digits"),
    name=TASK,
    summary="which quarter of a small image is bright",
    dataset=TASK,
    host=CnnHostSpec(in_channels=1, image_size=4, num_classes=4, base_channels=2, num_blocks=2),
    batch_size=12,
    defaults={
        "slots": ("r0c0", "r0c1"),
        "lstm_hidden_dim": 8,
        "feature_dim": 8,
        "recurrent_n_epochs": 2,
        "max_epochs": 3,
        "n_envs": 2,
        "n_episodes": 1,
    },
)


def _load(spec: object, request: DataRequest) -> TensorDataset:
    return TensorDataset(train=_split(NUM_TRAIN, 1), val=_split(NUM_VAL, 2), test=_split(8, 3))


def _split(size: int, seed: int) -> Split:
    source = torch.Generator().manual_seed(seed)
    inputs = 0.1 * torch.randn(size, 1, 4, 4, generator=source)
    targets = torch.arange(size) % 4
    for row, target in enumerate(targets.tolist()):
        inputs[row, 0, 2 * (target // 2) :][:2, 2 * (target % 2) :][:, :2] += 1.0
    return Split(inputs=inputs, targets=targets)


if TASK not in all_tasks():
    register_task(_SPEC, load=_load)


class SmallRun(msgspec.Struct):
    """A run that came to its end, one way or the other."""

    directory: Path
    events: list[Event]
    result: TrainingResult | None
    error: EsperError | None

    def of(self, *types: EventType) -> list[Event]:
        return [event for event in self.events if event.event_type in types]

    def data(self, event_type: EventType) -> list[Payload]:
        return [event.data for event in self.of(event_type)]

    @property
    def counts(self) -> Counter[EventType]:
        return Counter(event.event_type for event in self.events)


def small_run(
    directory: Path, command: str = "ppo", run: dict[str, object] | None = None, **training: object
) -> SmallRun:
    """Run a job and read its log; a run that fails leaves its log as well."""
    settings = {
        "training": {"task": TASK, **training},
        "run": {"telemetry_dir": str(directory), "fsync": "never", "lanes": 1, **(run or {})},
    }
    job, _ = merge_job(("test", settings), tasks=all_tasks())
    result, error = None, None
    try:
        result = run_job(job, command=command)
    except EsperError as raised:
        error = raised
    (log,) = directory.glob("*/events.jsonl")
    return SmallRun(directory=log.parent, events=read_events(log), result=result, error=error)


def read_events(log: Path) -> list[Event]:
    return [decode_event(line) for line in log.read_bytes().splitlines()]


LENIENT = {
    "min_training_steps": 1,
    "min_gradient_ratio": 0.0,
    "min_gradient_health": 0.0,
    "min_fossilize_contribution_pp": -100.0,
}
"""Gates under which seeds go through their whole life within a few steps."""


def lively_run(directory: Path, **training: object) -> SmallRun:
    """Run two rounds in which seeds germinate, are weighed, pruned and fossilized."""
    settings = {"n_episodes": 2, "max_epochs": 25, "seed": 1, "lifecycle": LENIENT}
    return small_run(directory, **{**settings, **training})


def break_envs(patch: pytest.MonkeyPatch, phase: Phase, at: set[tuple[int, int]]) -> None:
    """Let the work of these (env, step) pairs raise; builds know no step and stand at 0."""
    if phase is Phase.APPLY:
        apply = action_execution.apply_decision

        def broken_apply(env: ParallelEnvState, decision: StepDecision, rules: ActionRules) -> Any:
            if (env.env_idx, decision.step) in at:
                raise ValueError(f"a fault in env {env.env_idx}")
            return apply(env, decision, rules)

        patch.setattr(action_execution, "apply_decision", broken_apply)
        return
    name = {Phase.TRAIN: "begin_train"}.get(phase, phase.value)
    work = getattr(TrainingWork, name)

    def broken(self: TrainingWork, *args: Any) -> Any:
        env_id = args[1] if phase is Phase.BUILD else args[0].env_idx
        step = 0 if phase is Phase.BUILD else args[1]
        if (env_id, step) in at:
            raise ValueError(f"a fault in env {env_id}")
        return work(self, *args)

    patch.setattr(TrainingWork, name, broken)


def lose_envs(patch: pytest.MonkeyPatch, at: set[tuple[int, int]]) -> None:
    """Let the validation loss of these (env, step) pairs be NaN, so that they are rolled back."""
    steps: dict[int, int] = {}
    validate = TrainingWork.validate

    def noted(self: TrainingWork, env: ParallelEnvState, step: int, beat: Any) -> Any:
        steps[env.env_idx] = step
        return validate(self, env, step, beat)

    def poisoned(env: ParallelEnvState, plan: AblationPlan) -> Any:
        losses, accuracies, weighed = materialize_attribution(env, plan)
        is_lost = (env.env_idx, steps[env.env_idx]) in at
        return [math.nan] * len(losses) if is_lost else losses, accuracies, weighed

    patch.setattr(TrainingWork, "validate", noted)
    patch.setattr(env_work, "materialize_attribution", poisoned)


def force_updates(patch: pytest.MonkeyPatch, **figures: object) -> None:
    """Let every update have measured these figures."""

    def forced(metrics: PPOMetrics, update_ms: float) -> PPOUpdateCompleted:
        return msgspec.structs.replace(ppo_update_event(metrics, update_ms), **figures)

    patch.setattr(vectorized_trainer, "ppo_update_event", forced)


def spoil_losses(patch: pytest.MonkeyPatch, rounds: set[int]) -> None:
    """Let the losses of these rounds' updates be NaN."""
    learn, compute = PolicyController.learn, ppo_update.compute_losses
    is_spoilt = False

    def noted(
        self: PolicyController, num_updates: int, check_cancelled: Callable[[], None]
    ) -> PPOMetrics:
        nonlocal is_spoilt
        is_spoilt = self._round_index in rounds
        return learn(self, num_updates, check_cancelled)

    def spoilt(*args: Any) -> ppo_update.Losses:
        losses = compute(*args)
        return dataclasses.replace(losses, policy=math.nan * losses.policy) if is_spoilt else losses

    patch.setattr(PolicyController, "learn", noted)
    patch.setattr(ppo_update, "compute_losses", spoilt)
