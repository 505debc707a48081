"""Whole steps of envs: what controllers make of them, and what each step leaves behind."""

import math

import pytest
import torch
from tests.simic.training.envs import (
    EAGER,
    IMAGES,
    NUM_TRAIN,
    SLOTS,
    TASKS,
    World,
    germination,
    grow,
    poison,
    world_of,
)
from tests.tamiyo.controllers.situations import situation_of

from esper.leyline.actions import ActionSpec, Op
from esper.leyline.config import HostSchedule, LrCurve
from esper.leyline.messages import EnvEvidence, EnvOutcome, MemoryStats, PanicReason
from esper.leyline.payloads import GradientAnomaly, SeedFossilized
from esper.leyline.stages import LifecycleRules, Stage
from esper.leyline.tasks import TASKS as SHIPPED
from esper.leyline.tasks import TaskSpec
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset
from esper.tamiyo.controllers.baselines import PeriodicController, RandomController
from esper.tamiyo.controllers.heuristic import HeuristicController
from esper.tamiyo.controllers.protocol import Controller
from esper.tolaria.fences import CpuFence, FenceCall, RecordingFence

tasks = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def drive(world: World, controller: Controller, num_steps: int) -> list[list[EnvOutcome]]:
    """Let a controller decide for some steps."""
    controller.begin_round(0)
    outcomes = []
    for step in range(num_steps):
        shown = world.look()
        choice = controller.choose(situation_of(*shown, step=step, rules=world.work.action_rules))
        outcomes.append(world.act(*choice.actions))
    return outcomes


@tasks
def test_periodic_takes_a_seed_to_a_fossil_on_a_real_body(task: TaskSpec) -> None:
    lifecycle = LifecycleRules(min_training_steps=3)
    world = world_of(task, lifecycle=lifecycle)
    outcomes = drive(world, PeriodicController(world.work.action_rules), 14)
    assert world.env.model.num_fossils == 1
    assert not any(outcome.outcome.veto_reason for [outcome] in outcomes)
    reported = [effect.payload for [outcome] in outcomes for effect in outcome.action_effects]
    assert sum(isinstance(payload, SeedFossilized) for payload in reported) == 1


def test_the_heuristic_takes_a_seed_to_a_fossil_on_the_digits_with_everything_at_its_default() -> (
    None
):
    digits = SHIPPED["digits"]
    world = world_of(
        digits,
        dataset=load_dataset("digits", DataRequest()),
        gradient_stride=10,
        val_batch_size=256,
        lifecycle=LifecycleRules(),
        max_epochs=40,
        run_seed=42,
    )
    outcomes = drive(world, HeuristicController(world.work.action_rules), 30)
    assert world.env.model.num_fossils >= 1
    ops = [outcome.outcome.effective_op for [outcome] in outcomes]
    assert ops.count(Op.FOSSILIZE) == world.env.model.num_fossils


@tasks
def test_nothing_that_random_chooses_is_refused_for_another_reason_than_a_gate(
    task: TaskSpec,
) -> None:
    world = world_of(task, n_envs=2, lifecycle=EAGER)
    outcomes = drive(world, RandomController(world.work.action_rules, seed=2), 20)
    done = [outcome.outcome for step in outcomes for outcome in step]
    assert all(it.veto_reason is None for it in done)
    assert {it.failure_reason.split()[0] for it in done if it.failure_reason} <= {"gate"}
    assert sum(it.effective_op is not Op.WAIT and it.succeeded for it in done) >= 5


def test_equal_worlds_live_equal_lives_whatever_lives_beside_them() -> None:
    alone, beside = world_of(n_envs=1), world_of(n_envs=3)
    first, second = (
        drive(world, RandomController(world.work.action_rules, seed=2), 12)
        for world in (alone, beside)
    )
    assert [step[0] for step in first] == [step[0] for step in second]


# --- Evidence ------------------------------------------------------------------------------------


def test_evidence_contains_what_the_passes_measured() -> None:
    world = world_of(n_envs=2)
    grow(world.env, "r0c1", Stage.HOLDING)
    evidence = world.look()[0]
    model = world.env.model
    assert evidence.train_samples == NUM_TRAIN // IMAGES.batch_size * IMAGES.batch_size
    assert evidence.host_params == model.num_host_params
    assert evidence.total_params == model.num_host_params + model.num_seed_params
    assert evidence.signals.train_loss == world.env.train_loss
    assert evidence.host_gradient_norm == world.env.host_gradient_norm
    assert evidence.stable_accuracy_pct == evidence.signals.val_accuracy_pct
    assert evidence.reports == world.env.reports
    assert world.env.evidence is evidence


def test_seeds_learn_what_the_pass_measured_of_them() -> None:
    world = world_of()
    grow(world.env, "r0c0", Stage.FOSSILIZED)
    grow(world.env, "r0c1", Stage.HOLDING)
    grow(world.env, "r0c2", Stage.TRAINING)
    [evidence] = world.look()
    fossil, held, incubating = evidence.reports
    seed = evidence.attribution.of("r0c1")
    assert seed is not None
    assert held.contribution_pp == seed.contribution_pp
    assert held.steps_since_contribution == 0
    assert held.current_accuracy_pct == evidence.signals.val_accuracy_pct
    # The fossil and the incubating seed still have what `grow` recorded.
    assert fossil.contribution_pp == incubating.contribution_pp == 2.0
    assert held.gradient is not None
    assert incubating.gradient is not None


def test_fossils_are_measured_on_the_last_step() -> None:
    world = world_of(max_epochs=2)
    grow(world.env, "r0c0", Stage.FOSSILIZED)
    [first] = world.look()
    assert first.attribution.of("r0c0") is None
    world.act(ActionSpec(slot_id=SLOTS[0]))
    [last] = world.look()
    measured = last.attribution.of("r0c0")
    assert measured is not None
    assert last.reports[0].contribution_pp == measured.contribution_pp


def test_modes_follow_the_passes() -> None:
    world = world_of()
    world.train()
    assert world.env.model.training
    world.validate()
    assert not world.env.model.training
    world.train()
    assert world.env.model.training


def test_gradients_that_are_lost_leave_with_the_evidence() -> None:
    world = world_of()
    grow(world.env, "r0c0", Stage.TRAINING)
    world.train()
    poison(world.env)
    world.train()
    [evidence] = world.validate()
    assert evidence.panic is not None
    assert evidence.panic.reason is PanicReason.NAN
    anomalies = [it for it in evidence.alarms if isinstance(it, GradientAnomaly)]
    assert {it.kind for it in anomalies} == {"nonfinite"}
    assert {it.slot_id for it in anomalies} == {None, "r0c0"}


def test_the_host_becomes_stable_once() -> None:
    world = world_of(host_lr=1e-6)
    became: list[EnvEvidence] = []
    for _ in range(6):
        became += world.look()
        world.act(ActionSpec(slot_id=SLOTS[0]))
    assert [evidence.became_stable for evidence in became].count(True) == 1
    assert became[-1].signals.is_stabilized


def test_an_env_cannot_act_before_it_was_looked_at() -> None:
    world = world_of()
    with pytest.raises(AssertionError, match="env 0 acts before its validation"):
        world.act(germination())


def test_releasing_an_env_waits_for_its_device() -> None:
    fence = RecordingFence()
    world = world_of(fences=[fence])
    world.work.release(world.env)
    assert [call.operation for call in fence.calls] == ["synchronize"]


def test_memory_of_each_device_is_read_once() -> None:
    stats = MemoryStats(
        allocated_bytes=1, reserved_bytes=2, free_bytes=3, total_bytes=4, num_retries=5, num_ooms=6
    )
    world = world_of(n_envs=3)
    work, envs = world.work, [world.work.build(0, env_id) for env_id in range(3)]
    fences = [RecordingFence(torch.device(name), stats) for name in ("cpu", "cpu", "meta")]
    for env, fence in zip(envs, fences, strict=True):
        env.fence, env.device = fence, fence.device

    assert work.memory(envs) == {"cpu": stats, "meta": stats}
    assert sum(fence.calls.count(FenceCall("memory")) for fence in fences) == 2
    envs[0].fence = CpuFence()
    assert work.memory(envs[:1]) == {}


def test_hosts_follow_the_schedule_of_the_run_and_warm_up_after_a_change_of_topology() -> None:
    schedule = HostSchedule(curve=LrCurve.COSINE, rewarmup_steps=3)
    world = world_of(max_epochs=8, host_lr=0.02, host_schedule=schedule)
    rates = []
    for step in range(8):
        if step == 3:
            grow(world.env, SLOTS[0], Stage.HOLDING)
        if step == 6:
            grow(world.env, SLOTS[1], Stage.TRAINING)  # changes no output yet
        world.look()
        rates.append([group["lr"] for group in world.env.host_optimizer.param_groups])
        world.act(ActionSpec(op=Op.WAIT, slot_id=SLOTS[0]))

    cosine = [0.5 * (1 + math.cos(math.pi * step / 8)) for step in range(8)]
    warmed = [1.0, 1.0, 1.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    expected = [[0.02 * factor * part] for factor, part in zip(cosine, warmed, strict=True)]
    assert rates == [pytest.approx(rate) for rate in expected]
