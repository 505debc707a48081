"""New envs: the same for the same seed, of their own, wired to their outbox, quiet about RNGs."""

import random
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.kasmina.tools import has_same_state
from tests.simic.training.envs import (
    IMAGES,
    SLOTS,
    TASKS,
    TEXT,
    context_for,
    germination,
    grow,
    poison,
    world_of,
)
from tests.simic.training.small_runs import lively_run
from torch import nn
from torch.nn.utils import parameters_to_vector

from esper.kasmina.hosts import build_host
from esper.kasmina.seed import GerminationRequest
from esper.leyline.actions import Blueprint
from esper.leyline.payloads import Payload, SeedGerminated
from esper.leyline.stages import Stage
from esper.leyline.streams import StreamPurpose
from esper.leyline.tasks import TaskSpec
from esper.simic.training import env_factory
from esper.simic.training.env_factory import (
    build_model,
    configure_slot_telemetry,
    create_env_state,
    make_telemetry_callback,
)
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.tolaria.fences import CpuFence, RecordingFence

tasks = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


@contextmanager
def unchanged_global_rngs() -> Iterator[None]:
    """Fail when the block draws from any generator that is not its own."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    assert torch.equal(before[0], torch.get_rng_state())
    assert all(
        np.array_equal(old, new) for old, new in zip(before[1], np.random.get_state(), strict=True)
    )
    assert before[2] == random.getstate()


@tasks
def test_equal_seeds_make_equal_hosts(task: TaskSpec) -> None:
    first, again = (build_model(context_for(task), 2, 0) for _ in range(2))
    assert has_same_state(first, again)


@tasks
def test_envs_rounds_and_run_seeds_make_different_hosts(task: TaskSpec) -> None:
    context, other = context_for(task, n_envs=2), context_for(task, n_envs=2, run_seed=8)
    hosts = [
        build_model(context, 0, 0),
        build_model(context, 0, 1),
        build_model(context, 1, 0),
        build_model(other, 0, 0),
    ]
    weights = [parameters_to_vector(host.host_parameters()) for host in hosts]
    assert len({tuple(vector.tolist()) for vector in weights}) == len(hosts)


@tasks
def test_no_part_of_an_envs_life_touches_a_global_generator(task: TaskSpec) -> None:
    with unchanged_global_rngs():
        world = world_of(task, n_envs=2)
        world.look()
        outcomes = world.act(*[germination(task=task)] * 2)
        world.wait()
        poison(world.env)
        [panicking, _] = world.validate()
        assert panicking.panic is not None
        world.act(None, germination(task=task))
        world.wait()
    assert all(outcome.outcome.succeeded for outcome in outcomes)


def test_seeds_of_an_env_are_drawn_from_its_own_stream() -> None:
    worlds = [world_of(n_envs=2), world_of(n_envs=2)]
    # In the second world the other env germinates first, and again.
    for env, slot_ids in ((worlds[0].envs[0], SLOTS[:1]), (worlds[1].envs[1], SLOTS[:2])):
        for slot_id in slot_ids:
            grow(env, slot_id, Stage.GERMINATED)
    grow(worlds[1].envs[0], SLOTS[0], Stage.GERMINATED)
    ours, theirs = (world.envs[0].model for world in worlds)
    assert has_same_state(ours, theirs)


def test_an_env_has_what_its_task_and_config_ask_for() -> None:
    context = context_for(n_envs=3, host_lr=0.2)
    env = create_env_state(context, 4, 2)
    assert (env.env_idx, env.round_index, env.episode_id) == (2, 4, 14)
    [group] = env.host_optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.2, 0.9, 5e-4)
    assert {id(p) for p in group["params"]} == {id(p) for p in env.model.host_parameters()}
    assert env.seed_optimizers.lr == IMAGES.seed_lr
    assert env.fence is context.fences[2]
    assert env.scaler is None
    assert env.model.slot_config.slot_ids == SLOTS
    assert env.reports == ()


def test_half_precision_gives_each_env_a_scaler_of_its_own() -> None:
    context = context_for(n_envs=2, uses_scaler=True)
    scalers = [create_env_state(context, 0, env_id).scaler for env_id in range(2)]
    assert all(isinstance(scaler, torch.amp.GradScaler) for scaler in scalers)
    assert scalers[0] is not scalers[1]


def test_fences_are_kept_over_the_rounds() -> None:
    context = context_for(fences=[RecordingFence()])
    assert create_env_state(context, 0, 0).fence is create_env_state(context, 1, 0).fence


def test_a_task_may_build_a_host_of_its_own() -> None:
    built: list[TaskSpec] = []

    def build(task: TaskSpec, generator: torch.Generator) -> nn.Module:
        built.append(task)
        return build_host(task.host, generator)

    model = build_model(context_for(build_host=build), 0, 0)
    assert built == [IMAGES]
    assert has_same_state(model, build_model(context_for(), 0, 0))


def test_dropout_draws_on_the_envs_device_and_parameters_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[StreamPurpose, torch.device] = {}

    def generator(
        context: object,
        purpose: StreamPurpose,
        round_index: int,
        env_id: int,
        device: torch.device = env_factory.HOST_SIDE,
    ) -> torch.Generator:
        asked[purpose] = device
        return torch.Generator().manual_seed(0)

    monkeypatch.setattr(env_factory, "_generator", generator)
    build_model(context_for(TEXT, fences=[CpuFence(torch.device("cuda", 1))]), 0, 0)
    assert asked == {
        StreamPurpose.INIT: torch.device("cpu"),
        StreamPurpose.DROPOUT: torch.device("cuda", 1),
    }


# --- Telemetry -----------------------------------------------------------------------------------


def test_nothing_holds_an_env_when_those_of_the_next_round_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[weakref.ref[nn.Module]] = []
    num_alive: list[int] = []
    build = TrainingWork.build

    def noted(self: TrainingWork, round_index: int, env_id: int) -> ParallelEnvState:
        if env_id == 0:
            # Without the collector's help: device memory should not have to wait for it.
            num_alive.append(sum(model() is not None for model in models))
        env = build(self, round_index, env_id)
        models.append(weakref.ref(env.model))
        return env

    monkeypatch.setattr(TrainingWork, "build", noted)
    lively_run(tmp_path, n_episodes=3, max_epochs=12)
    assert num_alive == [0, 0, 0]


def test_every_slot_puts_its_payloads_into_the_envs_outbox() -> None:
    idle, env = world_of(n_envs=2).envs
    for slot_id in SLOTS:
        request = GerminationRequest(seed_id=slot_id, blueprint=Blueprint.NORM)
        assert env.model.germinate(slot_id, request, env.seed_generator).succeeded
        reported = env.take_outbox()
        assert [p.slot_id for p in reported if isinstance(p, SeedGerminated)] == [slot_id]
    assert idle.outbox == []


def test_a_callback_adds_to_the_outbox_it_was_made_for() -> None:
    outbox: list[Payload] = []
    callback = make_telemetry_callback(outbox)
    model = build_model(context_for(), 0, 0)
    configure_slot_telemetry(model, callback)
    assert [slot.emit for slot in model.all_slots()] == [callback] * len(SLOTS)
    payload = Payload()
    callback(payload)
    assert outbox == [payload]
