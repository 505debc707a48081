"""One batch at a time: training against a plain loop, readings against closed forms, no waiting."""

import math
from contextlib import nullcontext

import pytest
import torch
from tests.builders.messages import make_report, make_signals
from tests.kasmina.tools import has_same_bits
from tests.simic.training.envs import IMAGES, SLOTS, TASKS, TEXT, World, batch_of, grow, world_of
from tests.simic.training.syncs import counted_reads
from torch import nn

from esper.kasmina.seed import PruneCause, Ramp
from esper.kasmina.trial import TRIAL_BATCHES
from esper.leyline.rewards import RewardMode
from esper.leyline.stages import Stage
from esper.leyline.tasks import TaskSpec
from esper.simic.telemetry.gradients import gradient_health, gradient_ratio
from esper.simic.training import batch_ops
from esper.simic.training.batch_ops import (
    MEASURED_STAGES,
    TrainRules,
    backpropagate,
    batch_signals_to_features,
    collect_gradient_telemetry_for_batch,
    loss_and_correct,
    materialize_gradient_readings,
    process_train_batch,
    process_val_batch,
    try_seeds,
)
from esper.simic.training.counterfactual_eval import build_ablation_plan, process_fused_val_batch
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.tamiyo.features import ActionFeedback, FeatureExtractor
from esper.tolaria.fences import FenceCall, RecordingFence

RULES = TrainRules(max_grad_norm=1.0, gradient_stride=1, autocast=nullcontext)
tasks = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
GROWING = (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)


def grown_world(task: TaskSpec = IMAGES, **settings: object) -> World:
    """Return one env with a seed of each kind that trains."""
    world = world_of(task, **settings)
    for env in world.envs:
        for slot_id, stage in zip(SLOTS, GROWING, strict=True):
            grow(env, slot_id, stage)
        world.work.begin_train(env, 0)
    return world


def leaving_world(**settings: object) -> World:
    """Return one env with a seed that is frozen on its way out."""
    world = world_of(**settings)
    grow(world.env, "r0c0", Stage.HOLDING)
    assert world.env.model.slot("r0c0").schedule_prune(Ramp(num_steps=3), PruneCause()).succeeded
    return world


# --- Training ------------------------------------------------------------------------------------


@tasks
def test_without_seeds_a_pass_is_a_plain_loop_bit_for_bit(task: TaskSpec) -> None:
    world, twin = world_of(task), world_of(task)
    model = twin.env.model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    losses, num_correct = [], 0
    for [batch] in twin.train_batches.batches(round=0, step=0):
        optimizer.zero_grad()
        logits = model(batch.inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), batch.targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        num_correct += int((logits.argmax(-1) == batch.targets).sum())
    world.train()
    for name, value in world.env.model.state_dict().items():
        assert has_same_bits(value, model.state_dict()[name]), name
    assert world.env.train_loss == pytest.approx(math.fsum(losses) / len(losses), rel=1e-6)
    per_row = 1 if task is IMAGES else TEXT.host.block_size
    total = len(losses) * task.batch_size * per_row
    assert world.env.train.total == total
    assert world.env.train_accuracy_pct == pytest.approx(100 * num_correct / total)


@tasks
def test_with_seeds_a_pass_is_a_plain_loop_with_an_optimizer_for_each_bit_for_bit(
    task: TaskSpec,
) -> None:
    world, twin = grown_world(task), grown_world(task)
    model = twin.env.model.train()
    parts = [list(model.host_parameters())]
    parts += [list(slot.seed_parameters()) for slot in model.all_slots()]
    decays = (5e-4, *[0.0] * len(SLOTS))
    optimizers = [
        torch.optim.SGD(part, lr=0.01, momentum=0.9, weight_decay=decay, foreach=False)
        for part, decay in zip(parts, decays, strict=True)
    ]
    batches = [batch for [batch] in twin.train_batches.batches(round=0, step=0)]
    for batch in batches:
        model.zero_grad()
        backpropagate(model, batch)
        for part, optimizer in zip(parts, optimizers, strict=True):
            nn.utils.clip_grad_norm_(part, 1.0, foreach=False)
            optimizer.step()
    num_tried = try_seeds(model, batches[-TRIAL_BATCHES:])
    world.train()
    assert world.env.num_tried == num_tried > 0
    for name, value in world.env.model.state_dict().items():
        assert has_same_bits(value, model.state_dict()[name]), name


def test_host_and_seeds_are_clipped_each_by_itself() -> None:
    env = grown_world().env
    rules = TrainRules(max_grad_norm=1e-3, gradient_stride=1, autocast=nullcontext)
    process_train_batch(env, batch_of(), 0, rules)
    groups = [env.model.host_parameters()]
    groups += [slot.seed_parameters() for slot in env.model.all_slots()]
    for parameters in groups:
        gradients = [p.grad.double().flatten() for p in parameters if p.grad is not None]
        assert torch.cat(gradients).norm() == pytest.approx(1e-3, rel=1e-3)


def test_without_a_limit_gradients_are_left_as_they_are() -> None:
    env, twin = grown_world().env, grown_world().env
    rules = TrainRules(max_grad_norm=None, gradient_stride=1, autocast=nullcontext)
    process_train_batch(env, batch_of(), 0, rules)
    backpropagate(twin.model, batch_of())
    for ours, theirs in zip(env.model.parameters(), twin.model.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        assert ours.grad is None or has_same_bits(ours.grad, theirs.grad)


def test_every_growing_seed_and_the_host_move_and_a_seed_that_leaves_rests() -> None:
    env = grown_world().env
    before = {name: value.clone() for name, value in env.model.named_parameters()}
    process_train_batch(env, batch_of(), 0, RULES)
    for part in ("host.", *(f"slots.{slot_id}." for slot_id in SLOTS)):
        names = [name for name in before if name.startswith(part)]
        moved = [n for n in names if not torch.equal(before[n], env.model.get_parameter(n))]
        assert moved, part

    resting = leaving_world().env
    before = {name: p.clone() for name, p in resting.model.slot("r0c0").named_parameters()}
    process_train_batch(resting, batch_of(), 0, RULES)
    for name, parameter in resting.model.slot("r0c0").named_parameters():
        assert torch.equal(before[name], parameter)
        assert parameter.grad is None


@pytest.mark.parametrize("stage", GROWING)
def test_a_fossil_goes_on_training(stage: Stage) -> None:
    env = world_of().env
    grow(env, "r0c0", Stage.FOSSILIZED)
    grow(env, "r0c1", stage)
    before = [p.clone() for p in env.model.slot("r0c0").seed_parameters()]
    process_train_batch(env, batch_of(), 0, RULES)
    after = env.model.slot("r0c0").seed_parameters()
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_classes_and_tokens_are_counted_alike() -> None:
    logits = torch.randn(4, 3, 7, generator=torch.Generator().manual_seed(0))
    targets = logits.argmax(-1)
    targets[0, 0] = (targets[0, 0] + 1) % 7
    loss, correct = loss_and_correct(logits, targets)
    flat_loss, flat_correct = loss_and_correct(logits.reshape(12, 7), targets.reshape(12))
    assert correct.item() == flat_correct.item() == 11
    assert has_same_bits(loss, flat_loss)
    by_hand = -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-6)


def test_a_loss_of_half_precision_logits_is_taken_in_single_precision() -> None:
    logits = torch.tensor([[80.0, 0.0]], dtype=torch.bfloat16)
    loss, _ = loss_and_correct(logits, torch.tensor([1]))
    assert loss.dtype is torch.float32
    assert loss.item() == 80.0


# --- Half precision ------------------------------------------------------------------------------


def test_scaled_gradients_train_as_unscaled_ones_do() -> None:
    scaled, plain = grown_world(uses_scaler=True).env, grown_world().env
    for env in (scaled, plain):
        for index in range(3):
            process_train_batch(env, batch_of(seed=index), index, RULES)
    assert scaled.scaler is not None
    for name, value in plain.model.state_dict().items():
        assert torch.allclose(value, scaled.model.state_dict()[name], rtol=1e-5, atol=1e-7), name
    assert materialize_gradient_readings(scaled)["r0c1"].norm == pytest.approx(
        materialize_gradient_readings(plain)["r0c1"].norm, rel=1e-5
    )


def test_an_overflow_skips_the_step_and_lowers_the_scale() -> None:
    env = world_of(uses_scaler=True).env
    assert env.scaler is not None
    before = [parameter.clone() for parameter in env.model.parameters()]
    scale = env.scaler.get_scale()
    batch = batch_of()
    process_train_batch(env, batch._replace(inputs=batch.inputs * math.inf), 0, RULES)
    pairs = zip(before, env.model.parameters(), strict=True)
    assert all(torch.equal(old, new) for old, new in pairs)
    assert env.scaler.get_scale() == scale / 2


def test_only_optimizers_with_gradients_go_through_the_scaler() -> None:
    env = leaving_world(uses_scaler=True).env
    grow(env, "r0c1", Stage.TRAINING)
    asked: list[tuple[str, object]] = []
    scaler = env.scaler
    assert scaler is not None
    unscale, step = scaler.unscale_, scaler.step
    scaler.unscale_ = lambda it: (asked.append(("unscale", it)), unscale(it))[1]
    scaler.step = lambda it: (asked.append(("step", it)), step(it))[1]
    process_train_batch(env, batch_of(), 0, RULES)
    training = env.seed_optimizers._by_slot["r0c1"]
    order = [env.host_optimizer, training]
    assert asked == [("unscale", it) for it in order] + [("step", it) for it in order]


def test_half_precision_reads_one_flag_per_optimizer_and_nothing_else() -> None:
    env = grown_world(uses_scaler=True).env
    with counted_reads() as reads:
        process_train_batch(env, batch_of(), 0, RULES)
    num_optimizers = 1 + len(env.seed_optimizers)
    assert reads == {"item": num_optimizers, "scalar": num_optimizers}


# --- No waiting ----------------------------------------------------------------------------------


@tasks
def test_no_value_is_read_inside_a_train_pass(task: TaskSpec) -> None:
    env = grown_world(task).env
    with counted_reads() as reads:
        for index in range(2):
            process_train_batch(env, batch_of(task), index, RULES)
    assert reads == {}


@tasks
def test_no_value_is_read_inside_a_validation_pass(task: TaskSpec) -> None:
    env = grown_world(task).env
    env.model.eval()
    plan = plan_of(env)
    env.start_validation(len(plan.ablations))
    with counted_reads() as reads:
        process_fused_val_batch(env, batch_of(task), plan, nullcontext)
        process_val_batch(env, batch_of(task), nullcontext)
    assert reads == {}


def test_a_train_pass_is_read_in_two_transfers_and_a_validation_pass_in_one() -> None:
    world = grown_world()
    process_train_batch(world.env, batch_of(), 0, RULES)
    with counted_reads() as reads:
        world.work.finish_train(world.env)
    assert reads == {"tolist": 2}
    with counted_reads() as reads:
        world.validate()
    assert reads == {"tolist": 1}


def test_deciding_on_an_op_reads_nothing() -> None:
    world = grown_world()
    world.look()
    with counted_reads() as reads:
        world.wait()
    assert reads == {"tolist": 3}


def plan_of(env: ParallelEnvState):
    return build_ablation_plan(
        env.reports,
        is_last_step=False,
        reward_mode=RewardMode.SHAPED,
        seed=0,
        round_index=0,
        env_id=0,
    )


ENTER_TRAIN, ENTER_VAL = FenceCall("enter", "training"), FenceCall("enter", "inference")
LEAVE, AWAIT, SYNC = FenceCall("leave"), FenceCall("await_transfers"), FenceCall("synchronize")
KEEP = FenceCall("keep", "2")


def test_a_step_asks_each_fence_for_these_operations_in_this_order() -> None:
    fences = [RecordingFence(), RecordingFence()]
    world = world_of(n_envs=2, fences=fences, val_batch_size=11)
    assert len(world.train_batches) == 3
    world.wait()
    one_batch = [AWAIT, KEEP]
    train = [ENTER_TRAIN, *one_batch, LEAVE] * 3
    validation = [ENTER_VAL, *one_batch, LEAVE] * 2
    snapshot, action = [ENTER_TRAIN, LEAVE], [ENTER_TRAIN, LEAVE]
    for fence in fences:
        assert fence.calls == [
            *train,
            SYNC,
            *validation,
            SYNC,
            *snapshot,
            *action,
        ]


# --- Gradient readings ---------------------------------------------------------------------------


def test_readings_follow_from_the_gradients_of_the_last_measured_batch() -> None:
    env = grown_world().env
    rules = TrainRules(max_grad_norm=None, gradient_stride=2, autocast=nullcontext)
    for index in range(3):
        process_train_batch(env, batch_of(seed=index), index, rules)
    host = [p.grad.double().norm().item() for p in env.model.host_parameters()]
    readings = materialize_gradient_readings(env)
    assert list(readings) == list(SLOTS)
    assert env.host_gradient_norm == pytest.approx(math.hypot(*host))
    for slot_id, reading in readings.items():
        slot = env.model.slot(slot_id)
        norms = [p.grad.double().norm().item() for p in slot.seed_parameters()]
        assert reading.norm == pytest.approx(math.hypot(*norms))
        assert reading.health == gradient_health(norms)
        ratio = gradient_ratio(
            math.hypot(*norms), slot.num_params, math.hypot(*host), env.model.num_host_params
        )
        assert reading.ratio == pytest.approx(ratio)


def test_a_batch_between_two_measurements_leaves_the_sample_alone() -> None:
    env = grown_world().env
    rules = TrainRules(max_grad_norm=1.0, gradient_stride=2, autocast=nullcontext)
    process_train_batch(env, batch_of(), 0, rules)
    sample = env.gradient_sample
    process_train_batch(env, batch_of(), 1, rules)
    assert env.gradient_sample is sample


def test_the_ratio_is_smoothed_over_steps_and_starts_with_the_first() -> None:
    env = grown_world().env
    ratios, norms = [], []
    for _ in range(3):
        process_train_batch(env, batch_of(), 0, RULES)
        reading = materialize_gradient_readings(env)["r0c1"]
        ratios.append(reading.ratio)
        slot = env.model.slot("r0c1")
        assert env.host_gradient_norm is not None
        norms.append(
            gradient_ratio(
                reading.norm, slot.num_params, env.host_gradient_norm, env.model.num_host_params
            )
        )
    assert ratios[0] == pytest.approx(norms[0])
    assert ratios[1] == pytest.approx(0.9 * ratios[0] + 0.1 * norms[1])
    assert ratios[2] == pytest.approx(0.9 * ratios[1] + 0.1 * norms[2])


@pytest.mark.parametrize("stage", [s for s in Stage if Stage.GERMINATED <= s <= Stage.FOSSILIZED])
def test_seeds_are_measured_while_gates_or_features_ask_for_it(stage: Stage) -> None:
    env = world_of().env
    grow(env, "r0c0", stage)
    process_train_batch(env, batch_of(), 0, RULES)
    assert ("r0c0" in materialize_gradient_readings(env)) is (stage in MEASURED_STAGES)


def test_a_frozen_seed_has_no_reading_rather_than_a_healthy_one() -> None:
    env = world_of().env
    grow(env, "r0c0", Stage.HOLDING)
    for parameter in env.model.slot("r0c0").seed_parameters():
        parameter.requires_grad_(False)
    process_train_batch(env, batch_of(), 0, RULES)
    assert materialize_gradient_readings(env) == {}


def test_without_a_sample_there_are_no_readings() -> None:
    assert materialize_gradient_readings(world_of().env) == {}


def test_gradient_telemetry_is_kept_out_of_compiled_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(
        batch_ops, "gradient_norms", lambda _: seen.append(torch.compiler.is_compiling())
    )
    env = world_of().env

    @torch.compile(backend="eager")
    def program(inputs: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        collect_gradient_telemetry_for_batch(env)
        return inputs + 1

    program(torch.ones(2))

    assert seen == [True, False]


# --- Features ------------------------------------------------------------------------------------


def test_features_of_all_envs_are_those_of_the_extractor() -> None:
    extractor = FeatureExtractor(SLOTS, 50)
    signals, reports = [make_signals(), make_signals(val_loss=0.3)], [(), (make_report(),)]
    feedback = [ActionFeedback()] * 2
    ours = batch_signals_to_features(extractor, signals, reports, feedback)
    theirs = extractor.observe(signals, reports, feedback)
    assert has_same_bits(ours.observations, theirs.observations)
    assert len(ours.observations) == 2
