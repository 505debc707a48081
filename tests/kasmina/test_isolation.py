"""A seed in isolation learns what it would do, and its host does not notice it."""

import copy
import itertools
from typing import cast

import msgspec
import pytest
import torch
from tests.kasmina.bodies import (
    BLUEPRINT,
    EAGER,
    SPECS,
    batch,
    disturb,
    generator,
    granted,
    grown,
    plant,
)
from tests.kasmina.seeds import CAUSE, HEALTHY
from tests.kasmina.tools import has_same_state
from torch.nn import functional

from esper.kasmina.blueprints import OPTIONAL_SEEDS
from esper.kasmina.hosts import SegmentedHost
from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.optimizers import SeedOptimizers, build_sgd
from esper.kasmina.seed import GerminationRequest, Ramp
from esper.kasmina.slot import NO_MODULES, SeedSlot
from esper.leyline.actions import (
    BLUEPRINTS_BY_TOPOLOGY,
    CurveChoice,
    Style,
    Tempo,
    Topology,
)
from esper.leyline.alpha import AlphaState
from esper.leyline.jobs import merge_job
from esper.leyline.stages import Gate, Stage
from esper.runtime.batches import Batch
from esper.runtime.datasets import TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import all_tasks, load_dataset
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.worker_assembly import build_work
from esper.simic.training.assembly.worker_setup import prepare_worker
from esper.simic.training.batch_ops import backpropagate
from esper.tolaria.stopping import StopFlag

SEEDED = [
    (topology, blueprint)
    for topology in Topology
    for blueprint in (*BLUEPRINTS_BY_TOPOLOGY[topology], *OPTIONAL_SEEDS[topology])
]
styles = pytest.mark.parametrize("style", Style)


def train(model: MorphogeneticModel, topology: Topology, *, num_batches: int = 3) -> torch.Tensor:
    """Train host and seeds; return the state of the host's dropout generator."""
    dropout = generator(5)
    cast(SegmentedHost, model.host).set_dropout_generator(dropout)
    host_optimizer = build_sgd(model.host_parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    seed_optimizers = SeedOptimizers(lr=0.05)
    seed_optimizers.sync_with(model)
    for index in range(num_batches):
        host_optimizer.zero_grad()
        seed_optimizers.zero_grad()
        backpropagate(model.train(), batch(topology, index))
        host_optimizer.step()
        seed_optimizers.step()
    return dropout.get_state()


def stop_before_its_ramp(slot: SeedSlot) -> None:
    """Put a seed where a ramp begins: in BLENDING, at alpha 0."""
    slot.state = msgspec.structs.replace(slot.occupant(), stage=Stage.BLENDING, alpha=AlphaState())


@pytest.mark.parametrize(("topology", "blueprint"), SEEDED)
@styles
@pytest.mark.parametrize("is_broken", [False, True])
def test_host_is_bit_identical_to_one_without_seeds(
    topology: Topology, blueprint: str, style: Style, is_broken: bool
) -> None:
    model, seedless = grown(SPECS[topology]), grown(SPECS[topology])
    slots = list(model.all_slots())
    stages = (Stage.GERMINATED, Stage.TRAINING, Stage.TRAINING)
    for slot, stage in zip(slots, itertools.cycle(stages), strict=False):
        plant(slot, stage, blueprint=blueprint, style=style)
    stop_before_its_ramp(slots[2])
    before = [copy.deepcopy(slot.seed) for slot in slots]
    if is_broken:
        for parameter in (p for slot in slots for p in slot.seed_parameters()):
            parameter.data.fill_(torch.nan)

    assert torch.equal(train(model, topology), train(seedless, topology))

    assert has_same_state(model.host, seedless.host)
    for slot, seed in zip(slots, before, strict=True):
        assert slot.seed is not None
        assert seed is not None
        assert not has_same_state(slot.seed, seed), "the seed did not learn"


@pytest.mark.parametrize("topology", Topology)
def test_gradient_is_that_of_the_network_with_the_seed_fully_on(topology: Topology) -> None:
    model = grown(SPECS[topology])
    first, second, third = itertools.islice(model.all_slots(), 3)
    plant(first, Stage.TRAINING, blueprint=BLUEPRINT[topology], style=Style.GATED_GATE)
    plant(second, Stage.TRAINING, blueprint=BLUEPRINT[topology])
    plant(third, Stage.HOLDING, blueprint=BLUEPRINT[topology])
    for slot in (first, second, third):
        disturb(slot)
    # In evaluation mode, where the whole network has one function and draws no dropout masks.
    model.eval()
    given = batch(topology, 1)
    backpropagate(model, given)
    found = [parameter.grad for parameter in first.seed_parameters()]

    second.restore(None, NO_MODULES)
    state = first.occupant()
    held = msgspec.structs.replace(state, stage=Stage.HOLDING, alpha=AlphaState(alpha=1.0))
    first.restore(held, first.modules_for(state))
    model.zero_grad(set_to_none=True)
    logits = model(given.inputs)
    functional.cross_entropy(logits.flatten(0, -2), given.targets.flatten()).backward()

    for gradient, parameter in zip(found, first.seed_parameters(), strict=True):
        assert gradient is not None
        assert parameter.grad is not None
        torch.testing.assert_close(gradient, parameter.grad)


LIFE = msgspec.structs.replace(
    EAGER, auto_forward=(Gate.G1, Gate.G2, Gate.G3), min_training_steps=1
)


@styles
@pytest.mark.parametrize("tempo", Tempo)
@pytest.mark.parametrize("curve", CurveChoice)
def test_no_pass_of_a_living_seed_is_without_gradient(
    style: Style, tempo: Tempo, curve: CurveChoice
) -> None:
    turn = style + len(Style) * (tempo + len(Tempo) * curve)
    # All blueprints, and seeds that advance by themselves as well as by order, in turn.
    topology, blueprint = SEEDED[turn % len(SEEDED)]
    model = grown(SPECS[topology])
    cast(SegmentedHost, model.host).set_dropout_generator(generator())
    slot = next(model.all_slots())
    slot.rules = LIFE if turn // len(SEEDED) % 2 else EAGER
    request = GerminationRequest(
        seed_id="s", blueprint=blueprint, style=style, tempo_steps=tempo.steps
    )
    granted(slot.germinate(request, generator()))
    expect_gradient(model, slot, topology)
    while slot.occupant().stage is not Stage.HOLDING:
        slot.advance()
        expect_gradient(model, slot, topology)
    for alpha in (0.5, 1.0):
        ramp = Ramp(num_steps=3, curve=curve.curve, steepness=curve.steepness)
        granted(slot.set_alpha_target(alpha, ramp))
        for _ in range(3):
            expect_gradient(model, slot, topology)
    if slot.occupant().stage is Stage.BLENDING:
        granted(slot.advance())
    slot.record_contribution(2.0)
    granted(slot.fossilize())
    expect_gradient(model, slot, topology)


def expect_gradient(model: MorphogeneticModel, slot: SeedSlot, topology: Topology) -> None:
    """Check the gradient of a train pass before and after the end of a step."""
    for end_step in (model.tick, None):
        model.zero_grad(set_to_none=True)
        backpropagate(model.train(), batch(topology, 1))
        gradients = [parameter.grad for parameter in slot.seed_parameters()]
        found = [gradient for gradient in gradients if gradient is not None]
        assert any(gradient.any() for gradient in found), slot.occupant()
        assert all(gradient.isfinite().all() for gradient in found)
        slot.record_gradient(HEALTHY)
        if end_step is not None:
            end_step()


def test_frozen_seed_at_alpha_zero_is_left_alone() -> None:
    model = grown(SPECS[Topology.CNN])
    slot = next(model.all_slots())
    plant(slot, Stage.HOLDING)
    granted(slot.schedule_prune(Ramp(num_steps=3), CAUSE))
    slot.state = msgspec.structs.replace(slot.occupant(), alpha=AlphaState())

    backpropagate(model, batch(Topology.CNN, 1))

    assert all(parameter.grad is None for parameter in slot.seed_parameters())


def test_seed_without_parameters_has_nothing_to_learn() -> None:
    model = grown(SPECS[Topology.CNN])
    plant(model.slot("r0c1"), Stage.TRAINING)
    model.slot("r0c1").seed = torch.nn.Identity()

    loss, _ = backpropagate(model, batch(Topology.CNN, 0))

    assert torch.isfinite(loss)


TOLERANCE_PCT = 2.0
"""How much the validation loss may rise when a seed is switched fully on after isolation."""


@pytest.fixture(scope="module")
def digits() -> TensorDataset:
    return load_dataset("digits", DataRequest())


@pytest.mark.parametrize("style", [Style.LINEAR_ADD, Style.LINEAR_MULTIPLY, Style.GATED_GATE])
@pytest.mark.parametrize("turn", range(3))
def test_seed_that_is_switched_on_after_isolation_does_no_damage(
    digits: TensorDataset, style: Style, turn: int
) -> None:
    """At the learning rates that ship, with all blueprints; each turn has three of them."""
    layer = {"training": {"task": "digits", "n_envs": 1, "seed": 2}, "run": {"engine": "threads"}}
    job, _ = merge_job(("test", layer), tasks=all_tasks())
    setup = prepare_worker(job, StopFlag(), parts=RunParts(), dataset=digits)
    work = build_work(setup)
    env = work.build(0, 0)
    cnn = [blueprint for topology, blueprint in SEEDED if topology is Topology.CNN]
    for slot_id, blueprint in zip(env.slot_ids, cnn[turn::3], strict=True):
        request = GerminationRequest(seed_id=slot_id, blueprint=blueprint, style=style)
        granted(env.model.germinate(slot_id, request, env.seed_generator))
    (held_out,) = next(iter(setup.val_batches.batches(round=0, step=0)))

    for step in range(10):
        work.begin_train(env, step)
        for index, shares in enumerate(setup.train_batches.batches(round=0, step=step)):
            work.train_batch(env, index, shares[0])
        work.finish_train(env)
        if step + 1 in (1, 5, 10):
            assert max(changes_switched_on(env.model.eval(), held_out)) <= TOLERANCE_PCT


@torch.no_grad()
def changes_switched_on(model: MorphogeneticModel, held_out: Batch) -> list[float]:
    """Return by how many percent each seed in isolation would change the loss."""
    logits, incubations = model.forward_and_features(held_out.inputs)
    own = functional.cross_entropy(logits, held_out.targets).item()
    losses = [
        functional.cross_entropy(model.forward_switched_on(incubation), held_out.targets).item()
        for incubation in incubations
    ]
    return [100 * (loss / own - 1) for loss in losses]
