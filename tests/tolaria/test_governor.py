"""The governor on real bodies: what it keeps, what it puts back, what it refuses beforehand."""

import math

import msgspec
import pytest
import torch
from tests.builders.messages import make_report, make_signals
from tests.kasmina.tools import has_same_bits
from tests.simic.training.envs import (
    HEALTHY,
    IMAGES,
    SLOTS,
    TASKS,
    TEXT,
    germination,
    grow,
    poison,
    world_of,
)

from esper.kasmina.model import MorphogeneticModel
from esper.leyline.actions import ActionSpec, Blueprint, Op, Topology
from esper.leyline.config import GovernorConfig
from esper.leyline.errors import ContractError
from esper.leyline.legality import ActionRules, illegality
from esper.leyline.messages import Panic, PanicReason
from esper.leyline.stages import LifecycleRules, Stage
from esper.leyline.tasks import TaskSpec
from esper.tolaria.governor import Governor, preflight
from esper.tolaria.vital_signs import VitalSigns

PANIC = Panic(reason=PanicReason.NAN, loss=math.nan, threshold=None, consecutive_anomalies=0)
tasks = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def weights_of(model: MorphogeneticModel) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(model: MorphogeneticModel, weights: dict[str, torch.Tensor]) -> None:
    now = model.state_dict()
    differing = [name for name, value in weights.items() if not has_same_bits(now[name], value)]
    assert differing == []


@tasks
def test_a_rollback_restores_weights_and_buffers_bit_for_bit(task: TaskSpec) -> None:
    world = world_of(task)
    world.wait()
    governor, model = world.env.governor, world.env.model
    governor.take_snapshot()
    before = weights_of(model)
    world.train()
    changed = [
        name for name, value in before.items() if not torch.equal(value, model.state_dict()[name])
    ]
    assert len(changed) == len(before)
    governor.roll_back(PANIC)
    assert_same(model, before)


def test_buffers_of_batch_norms_are_among_what_is_restored() -> None:
    names = world_of().env.model.state_dict()
    assert {name.rsplit(".", 1)[-1] for name in names} >= {"running_mean", "num_batches_tracked"}


def test_the_weights_an_env_starts_with_are_kept_from_the_start() -> None:
    env = world_of().env
    before = weights_of(env.model)
    poison(env)
    env.governor.roll_back(PANIC)
    assert_same(env.model, before)


def test_parameters_stay_the_same_objects_and_what_is_kept_is_a_copy() -> None:
    env = world_of().env
    grow(env, "r0c0", Stage.FOSSILIZED)
    env.governor.take_snapshot()
    before = {
        name: (parameter, parameter.data_ptr()) for name, parameter in env.model.named_parameters()
    }
    poison(env)
    env.governor.roll_back(PANIC)
    after = dict(env.model.named_parameters())
    assert before.keys() == after.keys()
    assert all(after[name] is it and it.data_ptr() == place for name, (it, place) in before.items())
    poison(env)
    env.governor.roll_back(PANIC)
    assert all(parameter.isfinite().all() for parameter in env.model.host_parameters())


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])
def test_a_rollback_prunes_a_seed_on_its_way_whatever_the_snapshot_saw(stage: Stage) -> None:
    env = world_of().env
    grow(env, "r0c1", stage)
    env.governor.take_snapshot()
    pruned = env.governor.roll_back(PANIC)
    slot = env.model.slot("r0c1")
    assert pruned == ("r0c1",)
    assert slot.state is not None
    assert slot.state.stage is Stage.PRUNED
    assert slot.seed is None
    [pruned] = [payload for payload in env.take_outbox() if hasattr(payload, "initiator")]
    assert (pruned.reason, pruned.initiator) == ("governor_nan", "governor")


def test_fossils_survive_a_rollback_with_the_weights_they_had_at_the_snapshot() -> None:
    env = world_of().env
    grow(env, "r0c0", Stage.FOSSILIZED)
    env.governor.take_snapshot()
    kept = weights_of(env.model)
    grow(env, "r0c2", Stage.BLENDING)
    with torch.no_grad():
        for parameter in env.model.parameters():
            parameter.add_(1.0)
    pruned = env.governor.roll_back(PANIC)
    assert pruned == ("r0c2",)
    assert env.model.num_fossils == 1
    assert set(env.model.state_dict()) == set(kept)
    assert_same(env.model, kept)


def test_a_seed_that_cools_down_already_is_left_alone() -> None:
    env = world_of().env
    grow(env, "r0c0", Stage.TRAINING)
    assert env.governor.roll_back(PANIC) == ("r0c0",)
    env.model.tick()
    assert env.governor.roll_back(PANIC) == ()
    state = env.model.slot("r0c0").state
    assert state is not None
    assert state.stage is Stage.EMBARGOED


def test_a_slot_is_free_again_after_the_cooldown() -> None:
    world = world_of()
    grow(world.env, "r0c0", Stage.HOLDING)
    world.env.governor.roll_back(PANIC)
    num_steps = 0
    while world.env.reports:
        for slot in world.env.model.all_slots():
            assert slot.seed is None
        world.wait()
        num_steps += 1
    rules = LifecycleRules()
    assert num_steps == 1 + rules.embargo_steps + rules.resetting_steps
    world.look()
    [outcome] = world.act(germination("r0c0"))
    assert outcome.outcome.succeeded


def test_a_fossil_that_no_snapshot_knows_is_refused_before_anything_is_restored() -> None:
    env = world_of().env
    grow(env, "r0c0", Stage.FOSSILIZED)
    with pytest.raises(ContractError, match=r"slots\.r0c0\.seed"):
        env.governor.roll_back(PANIC)


def test_while_losses_are_anomalous_good_weights_are_kept_and_only_new_fossils_join() -> None:
    env = world_of().env
    good = weights_of(env.model)
    env.governor.signs = VitalSigns(losses=(1.0,) * 10, consecutive_anomalies=1)
    with torch.no_grad():
        for parameter in env.model.host_parameters():
            parameter.mul_(1e6)
    grow(env, "r0c0", Stage.FOSSILIZED)
    fossil = {k: v for k, v in weights_of(env.model).items() if k.startswith("slots.")}
    env.governor.take_snapshot()
    env.governor.roll_back(PANIC)
    assert_same(env.model, good | fossil)
    assert env.governor.signs == VitalSigns(losses=(1.0,) * 10)


def test_three_explosions_in_a_row_roll_back_to_weights_from_before_the_first() -> None:
    governor_config = GovernorConfig(snapshot_every=1, absolute_threshold=12.0)
    env = world_of(governor=governor_config).env
    governor = env.governor
    for _ in range(10):
        assert governor.check(1.0) is None
    governor.take_snapshot()
    good = weights_of(env.model)
    verdicts = []
    for loss in (50.0, 60.0, 70.0):
        with torch.no_grad():
            for parameter in env.model.host_parameters():
                parameter.add_(1.0)
        verdicts.append(governor.check(loss))
        if verdicts[-1] is None:
            governor.take_snapshot()
    assert [verdict and verdict.reason for verdict in verdicts] == [None, None, "divergence"]
    assert verdicts[2] is not None
    governor.roll_back(verdicts[2])
    assert_same(env.model, good)


def test_a_rollback_forgets_the_anomalies_and_keeps_the_history() -> None:
    governor = world_of().env.governor
    governor.signs = VitalSigns(losses=(1.0, 2.0), consecutive_anomalies=3)
    governor.roll_back(PANIC)
    assert governor.signs == VitalSigns(losses=(1.0, 2.0))


@pytest.mark.parametrize(("task", "num_classes"), [(IMAGES, 5), (TEXT, 11)])
def test_a_lobotomy_is_measured_by_the_number_of_classes(task: TaskSpec, num_classes: int) -> None:
    governor: Governor = world_of(task).env.governor
    guess = math.log(num_classes)
    for _ in range(10):
        assert governor.check(0.5 * guess) is None
    panic = governor.check(guess)
    assert panic is not None
    assert panic.reason is PanicReason.LOBOTOMY
    assert governor.check(1.1 * guess) is None


@pytest.mark.parametrize(("step", "is_due"), [(0, True), (1, False), (4, False), (5, True)])
def test_a_snapshot_is_due_every_fifth_step(step: int, is_due: bool) -> None:
    assert world_of().env.governor.is_snapshot_due(step) is is_due


def test_a_panicking_step_is_never_kept() -> None:
    world = world_of()
    good = weights_of(world.env.model)
    poison(world.env)
    [evidence] = world.validate()
    assert evidence.panic is not None
    assert evidence.panic.reason is PanicReason.NAN
    world.env.governor.roll_back(evidence.panic)
    assert_same(world.env.model, good)


# --- Before an op runs ---------------------------------------------------------------------------

RULES = ActionRules(slot_ids=SLOTS, topology=Topology.CNN, max_seeds=1)


@pytest.mark.parametrize("name", ["val_loss", "val_accuracy_pct"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nothing_is_done_on_measurements_that_are_not_finite(name: str, value: float) -> None:
    signals = make_signals(**{name: value})
    assert preflight(germination(), signals, (), RULES) == f"{name} is not finite"
    assert preflight(ActionSpec(slot_id="r0c0"), signals, (), RULES) is None


REFUSED = {
    "slot 'r9c9' is not enabled": (germination("r9c9"), ()),
    "blueprint 'noop' does not grow in a cnn host": (germination(blueprint=Blueprint.NOOP), ()),
    "the seed is in stage HOLDING": (
        ActionSpec(op=Op.ADVANCE, slot_id="r0c0"),
        (make_report(stage=Stage.HOLDING),),
    ),
    "slot 'r0c0' is in stage EMBARGOED": (
        germination("r0c1"),
        (make_report(stage=Stage.EMBARGOED),),
    ),
    "1 seeds are the limit": (germination("r0c1"), (make_report(stage=Stage.HOLDING),)),
    "the slot is empty": (ActionSpec(op=Op.PRUNE, slot_id="r0c0"), ()),
    "the seed is 4 steps old, younger than 5": (
        ActionSpec(op=Op.PRUNE, slot_id="r0c0"),
        (make_report(age_steps=4),),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_an_illegal_op_is_vetoed_with_its_reason(reason: str) -> None:
    action, reports = REFUSED[reason]
    assert preflight(action, make_signals(), reports, RULES) == reason
    assert illegality(action, reports, RULES) == reason


def test_a_legal_op_passes() -> None:
    assert preflight(germination(), make_signals(), (), RULES) is None
    held = msgspec.structs.replace(make_report(stage=Stage.HOLDING), gradient=HEALTHY)
    fossilize = ActionSpec(op=Op.FOSSILIZE, slot_id="r0c0")
    assert preflight(fossilize, make_signals(), (held,), RULES) is None
