"""Injects faults into one env: they are contained, reported, and do not affect other envs."""

import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from tests.builders.fingerprints import digest_of
from tests.builders.tiny_runs import short_run
from tests.builders.tiny_tasks import TINY, TINY_LM
from tools.bench.rows import Row

from esper.leyline.telemetry import Event, EventType, decode_event
from esper.nissa.analysis.normalizing import normal_form
from esper.nissa.analysis.validation import validate_run
from esper.nissa.storage.journal import EVENTS_FILE
from esper.runtime.batches import Batch
from esper.simic.training import action_execution
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.simic.training.policy_controller import PolicyController

QUICK_FAULTS, FULL_FAULTS = 26, 1_000
NUM_ENVS = 3
NUM_STEPS = 4
NUM_ROUNDS = 2
NUM_BATCHES = 4
CULPRIT_TYPES = (EventType.ENV_FAILED, EventType.GOVERNOR_ROLLBACK)


class Kind(StrEnum):
    """The kind of fault."""

    INPUT_NAN = "nan in the inputs"
    INPUT_INF = "inf in the inputs"
    WEIGHT_NAN = "nan in a weight"
    WEIGHT_INF = "inf in a weight"
    GRADIENT_NAN = "nan in a gradient"
    GRADIENT_INF = "inf in a gradient"
    LOSS_NAN = "nan in the loss"
    LOSS_INF = "inf in the loss"
    BUILD_ERROR = "error while building"
    TRAIN_ERROR = "error while training"
    VALIDATE_ERROR = "error while validating"
    APPLY_ERROR = "error while applying"
    ALLOCATION = "allocation that fails"


NUMBERS = {kind: float(kind.value[:3]) for kind in Kind if kind.value[:3] in ("nan", "inf")}


class Fault(NamedTuple):
    """One fault at one place."""

    kind: Kind
    round: int
    env_id: int
    step: int
    batch: int


class SabotageError(Exception):
    """Raised where a fault is an exception."""


@dataclass(eq=False, slots=True)
class Watched:
    """Observations of a run's envs, with or without a fault."""

    fault: Fault | None = None
    step: int = 0
    weights: dict[tuple[int, int, int], str] = field(default_factory=dict)
    """Hashes of the models after each step, by round, env and step."""
    has_broken: bool = False

    def strikes(self, env: ParallelEnvState, *kinds: Kind) -> bool:
        """Return whether one of these faults is due here; true only once."""
        fault = self.fault
        if fault is None or self.has_broken or fault.kind not in kinds:
            return False
        is_here = (env.round_index, env.env_idx) == (fault.round, fault.env_id)
        self.has_broken = is_here and self.step_of(env) == fault.step
        return self.has_broken

    def step_of(self, env: ParallelEnvState) -> int:
        """Return the env's current step: the number of completed ones."""
        return sum(key[:2] == (env.round_index, env.env_idx) for key in self.weights)


@contextmanager
def watched_run(watched: Watched) -> Iterator[None]:
    """Observe every env of a run, and inject the fault."""
    train, validate, apply, build, learn = (
        TrainingWork.train_batch,
        TrainingWork.validate,
        action_execution.apply_decision,
        TrainingWork.build,
        PolicyController.learn,
    )

    def train_batch(work: Any, env: ParallelEnvState, batch_index: int, batch: Batch) -> None:
        fault = watched.fault
        if fault is None or batch_index != fault.batch:
            return train(work, env, batch_index, batch)
        with ExitStack() as after:
            return train(work, env, batch_index, _spoilt(watched, env, batch, after))

    def validating(work: Any, env: ParallelEnvState, *rest: Any) -> Any:
        if watched.strikes(env, Kind.VALIDATE_ERROR):
            raise SabotageError("sabotage")
        return validate(work, env, *rest)

    def applying(env: ParallelEnvState, decision: Any, rules: Any) -> Any:
        if watched.strikes(env, Kind.APPLY_ERROR):
            raise SabotageError("sabotage")
        outcome = apply(env, decision, rules)
        place = (env.round_index, env.env_idx, decision.step)
        watched.weights[place] = digest_of(env.model.state_dict())
        return outcome

    def building(work: Any, round_index: int, env_id: int) -> Any:
        fault = watched.fault
        is_here = fault is not None and (round_index, env_id) == (fault.round, fault.env_id)
        if fault is not None and is_here and fault.kind is Kind.BUILD_ERROR:
            raise SabotageError("sabotage")
        return build(work, round_index, env_id)

    def learning(controller: PolicyController, *arguments: Any) -> Any:
        _check_buffer(controller)
        return learn(controller, *arguments)

    with ExitStack() as patches:
        for owner, name, call in (
            (TrainingWork, "train_batch", train_batch),
            (TrainingWork, "validate", validating),
            (action_execution, "apply_decision", applying),
            (TrainingWork, "build", building),
            (PolicyController, "learn", learning),
        ):
            patches.enter_context(mock.patch.object(owner, name, call))
        yield


def _spoilt(watched: Watched, env: ParallelEnvState, batch: Batch, after: ExitStack) -> Batch:
    """Inject the fault due in this batch; hooks are removed after it."""
    fault = watched.fault
    assert fault is not None
    number = NUMBERS.get(fault.kind, 0.0)
    parameter = next(env.model.host_parameters())
    if watched.strikes(env, Kind.TRAIN_ERROR):
        raise SabotageError("sabotage")
    if watched.strikes(env, Kind.ALLOCATION):
        torch.empty(1 << 60)
    if watched.strikes(env, Kind.INPUT_NAN, Kind.INPUT_INF):
        return replace(batch, inputs=torch.full_like(batch.inputs, number))
    if watched.strikes(env, Kind.WEIGHT_NAN, Kind.WEIGHT_INF):
        parameter.data.view(-1)[0] = number
    if watched.strikes(env, Kind.GRADIENT_NAN, Kind.GRADIENT_INF):
        after.callback(parameter.register_hook(partial(mul, number)).remove)
    if watched.strikes(env, Kind.LOSS_NAN, Kind.LOSS_INF):
        spoil = partial(_spoilt_forward, env.model.forward_and_features, number)
        after.enter_context(mock.patch.object(env.model, "forward_and_features", spoil))
    return batch


def _spoilt_forward(forward: Any, number: float, inputs: torch.Tensor) -> Any:
    logits, features = forward(inputs)
    return logits * number, features


def _check_buffer(controller: PolicyController) -> None:
    rows = controller.agent.buffer.batch()
    for item in fields(rows):
        value = getattr(rows, item.name)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert bool(value.isfinite().all()), f"{item.name} of the buffer is not finite"


class RunRecord(NamedTuple):
    """The observations of a finished run."""

    weights: dict[tuple[int, int, int], str]
    events: list[Event]
    lines: list[bytes]
    """Without fields that may differ between two equal runs."""

    def of_env(self, round_index: int, env_id: int) -> list[bytes]:
        """Return the events of one env in one round."""
        return [
            line
            for event, line in zip(self.events, self.lines, strict=True)
            if (event.round, event.env_id) == (round_index, env_id)
        ]


def run_with(folder: Path, task: str, fault: Fault | None) -> RunRecord:
    """Run a tiny job with an injected fault."""
    watched = Watched(fault)
    with watched_run(watched):
        run_dir = short_run(
            folder,
            task,
            lanes=2,
            n_envs=NUM_ENVS,
            max_epochs=NUM_STEPS,
            n_episodes=NUM_ROUNDS,
            batch_size_per_env=12,
        )
    found = validate_run(run_dir)
    assert found.is_valid, found.findings
    raw = (run_dir / EVENTS_FILE).read_bytes().splitlines()
    return RunRecord(
        watched.weights, [decode_event(line) for line in raw], [normal_form(x) or b"" for x in raw]
    )


def check_contained(fault: Fault, record: RunRecord, plain: RunRecord) -> None:
    """Assert that one event reports the fault and that the other envs are unaffected."""
    culprits = [event for event in record.events if event.event_type in CULPRIT_TYPES]
    assert len(culprits) == 1, f"{fault}: {len(culprits)} events report it"
    [culprit] = culprits
    assert (culprit.round, culprit.env_id) == (fault.round, fault.env_id), culprit
    assert (
        culprit.step in (None, fault.step)
        if fault.kind is Kind.BUILD_ERROR
        else (culprit.step == fault.step)
    ), f"{fault}: reported in step {culprit.step}"
    for env_id in set(range(NUM_ENVS)) - {fault.env_id}:
        assert record.of_env(fault.round, env_id) == plain.of_env(fault.round, env_id), (
            f"{fault}: env {env_id} has other events"
        )
    for place, digest in plain.weights.items():
        if place[0] < fault.round or (place[0] == fault.round and place[1] != fault.env_id):
            assert record.weights[place] == digest, f"{fault}: other weights at {place}"


def random_fault(rng: random.Random, kind: Kind) -> Fault:
    """Draw a random fault."""
    return Fault(
        kind=kind,
        round=rng.randrange(NUM_ROUNDS),
        env_id=rng.randrange(NUM_ENVS),
        step=0 if kind is Kind.BUILD_ERROR else rng.randrange(NUM_STEPS),
        batch=rng.randrange(NUM_BATCHES),
    )


def kinds_for(task: str) -> list[Kind]:
    """Return the faults that apply to a task; tokens have no NaN."""
    return [kind for kind in Kind if task == TINY or not kind.name.startswith("INPUT")]


def rows(is_quick: bool) -> Iterator[Row]:
    """Inject faults into one env after another: row L6."""
    target = QUICK_FAULTS if is_quick else FULL_FAULTS
    rng = random.Random(6)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = {task: run_with(folder, task, None) for task in (TINY, TINY_LM)}
        for index in range(target):
            task = (TINY, TINY_LM)[index % 2]
            kinds = kinds_for(task)
            fault = random_fault(rng, kinds[index // 2 % len(kinds)])
            check_contained(fault, run_with(folder, task, fault), plain[task])
    yield Row(
        name="L6 faults contained and reported",
        measured=target,
        target=target,
        unit="faults",
        is_at_least=True,
        note="other envs bit-identical to the end of that round",
    )
