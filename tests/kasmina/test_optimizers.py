"""Optimizers follow their seeds, and the moments of other seeds do not change."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.kasmina.bodies import (
    AT_ONCE,
    BLUEPRINT,
    SPECS,
    disturb,
    granted,
    grown,
    inputs,
    lead,
    loss_of,
    plant,
)
from tests.kasmina.seeds import CAUSE
from torch import nn

from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.optimizers import (
    SeedOptimizers,
    build_sgd,
    clip_gradients,
    forget_gradients,
    gradients_of,
    sgd_step,
)
from esper.kasmina.seed import Ramp
from esper.leyline.actions import Blueprint, Style, Topology
from esper.leyline.stages import Stage
from esper.leyline.tasks import HostSpec


def host_sgd(host: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(host.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)


def train(
    model: nn.Module,
    host_optimizer: torch.optim.SGD,
    seeds: SeedOptimizers,
    num_batches: int = 3,
    topology: Topology = Topology.CNN,
) -> None:
    for batch in range(num_batches):
        if isinstance(model, MorphogeneticModel):
            seeds.sync_with(model)
        host_optimizer.zero_grad()
        seeds.zero_grad()
        loss_of(model, SPECS[topology], seed=batch).backward()
        if isinstance(model, MorphogeneticModel):
            learn_in_isolation(model, SPECS[topology], seed=batch)
        host_optimizer.step()
        seeds.step()


def learn_in_isolation(model: MorphogeneticModel, spec: HostSpec, seed: int) -> None:
    """Give seeds in isolation a gradient, through features that cost the host no statistics."""
    model.host.eval()
    _, incubations = model.forward_and_features(inputs(spec, seed))
    model.host.train()
    for incubation in incubations:
        if parameters := list(incubation.slot.seed_parameters()):
            loss = model.forward_switched_on(incubation).square().mean()
            loss.backward(inputs=parameters)


def moments(optimizer: torch.optim.SGD) -> list[torch.Tensor]:
    return [entry["momentum_buffer"].clone() for entry in optimizer.state.values()]


def weights(slot_id: str, model: MorphogeneticModel) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.slot(slot_id).seed_parameters()]


def assert_equal_lists(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert all(torch.equal(*pair) for pair in zip(left, right, strict=True))


def by_slot(seeds: SeedOptimizers) -> dict[str, torch.optim.SGD]:
    """Return the optimizers keyed by slot id."""
    return seeds._by_slot


@pytest.mark.parametrize("topology", Topology)
def test_host_trains_as_if_incubating_seeds_were_not_there(topology: Topology) -> None:
    model = grown(SPECS[topology])
    seedless = copy.deepcopy(model.host)
    optimizers = [host_sgd(model.host), host_sgd(seedless)]
    seeds = SeedOptimizers(lr=0.01)
    for slot in model.all_slots():
        plant(slot, Stage.TRAINING, blueprint=BLUEPRINT[topology])

    train(model, optimizers[0], seeds, topology=topology)
    train(seedless, optimizers[1], SeedOptimizers(lr=0.01), topology=topology)

    for name, tensor in seedless.state_dict().items():
        assert torch.equal(model.host.state_dict()[name], tensor), name
    assert_equal_lists(moments(optimizers[0]), moments(optimizers[1]))
    assert all(optimizer.state for optimizer in seeds)


def test_optimizer_is_made_kept_and_dropped_with_its_seed() -> None:
    model, seeds = grown(), SeedOptimizers(lr=0.02)
    seeds.sync_with(model)
    assert len(seeds) == 0

    plant(model.slot("r0c1"))
    seeds.sync_with(model)
    made = by_slot(seeds)["r0c1"]
    lead(model.slot("r0c1"), Stage.HOLDING)
    seeds.sync_with(model)
    assert by_slot(seeds) == {"r0c1": made}
    assert (made.defaults["lr"], made.defaults["momentum"]) == (0.02, 0.9)
    assert made.defaults["weight_decay"] == 0

    granted(model.slot("r0c1").prune(CAUSE))
    seeds.sync_with(model)
    assert len(seeds) == 0


def test_next_seed_of_a_slot_starts_without_moments() -> None:
    model, seeds = grown(), SeedOptimizers(lr=0.01)
    host_optimizer = host_sgd(model.host)
    plant(model.slot("r0c1"), Stage.TRAINING)
    train(model, host_optimizer, seeds)
    granted(model.slot("r0c1").prune(CAUSE))
    for _ in range(7):
        model.tick()

    plant(model.slot("r0c1"))
    seeds.sync_with(model)

    assert not by_slot(seeds)["r0c1"].state


@pytest.mark.parametrize("event", ["germinate", "advance", "fossilize", "retarget", "prune"])
def test_moments_of_host_and_other_seeds_survive_every_event(event: str) -> None:
    model, seeds = grown(), SeedOptimizers(lr=0.01)
    host_optimizer = host_sgd(model.host)
    plant(model.slot("r0c0"), Stage.HOLDING)
    if event != "germinate":
        plant(model.slot("r0c1"), Stage.TRAINING if event == "advance" else Stage.HOLDING)
    train(model, host_optimizer, seeds)
    before = [moments(host_optimizer), moments(by_slot(seeds)["r0c0"])]
    groups = [id(p) for group in host_optimizer.param_groups for p in group["params"]]

    match event:
        case "germinate":
            plant(model.slot("r0c1"))
        case "advance":
            granted(model.slot("r0c1").advance())
        case "fossilize":
            granted(model.slot("r0c1").fossilize())
        case "retarget":
            granted(model.slot("r0c1").set_alpha_target(0.5, AT_ONCE))
        case _:
            granted(model.slot("r0c1").prune(CAUSE))
    seeds.sync_with(model)

    after = [moments(host_optimizer), moments(by_slot(seeds)["r0c0"])]
    for left, right in zip(before, after, strict=True):
        assert_equal_lists(left, right)
    assert groups == [id(p) for group in host_optimizer.param_groups for p in group["params"]]


def test_fossil_goes_on_training_with_its_moments() -> None:
    model, seeds = grown(), SeedOptimizers(lr=0.01)
    host_optimizer = host_sgd(model.host)
    plant(model.slot("r0c1"), Stage.HOLDING)
    train(model, host_optimizer, seeds)
    kept, before = by_slot(seeds)["r0c1"], weights("r0c1", model)
    past = moments(kept)

    granted(model.slot("r0c1").fossilize())
    seeds.sync_with(model)
    assert by_slot(seeds)["r0c1"] is kept
    assert_equal_lists(moments(kept), past)
    train(model, host_optimizer, seeds, num_batches=1)

    assert not all(torch.equal(*pair) for pair in zip(before, weights("r0c1", model), strict=True))


def test_gate_network_trains_from_its_first_blended_batch() -> None:
    model, seeds = grown(), SeedOptimizers(lr=0.1)
    slot = model.slot("r0c1")
    plant(slot, Stage.BLENDING, style=Style.GATED_GATE, blueprint=Blueprint.CONV_LIGHT)
    disturb(slot)
    assert slot.gate is not None
    before = copy.deepcopy(slot.gate.state_dict())

    train(model, host_sgd(model.host), seeds, num_batches=1)

    assert not torch.equal(slot.gate.state_dict()["output.weight"], before["output.weight"])


def test_seed_does_not_move_while_alpha_ramps_down() -> None:
    model, seeds = grown(), SeedOptimizers(lr=0.01)
    host_optimizer = host_sgd(model.host)
    plant(model.slot("r0c1"), Stage.HOLDING)
    train(model, host_optimizer, seeds)
    granted(model.slot("r0c1").schedule_prune(Ramp(num_steps=3), CAUSE))
    before, past = weights("r0c1", model), moments(by_slot(seeds)["r0c1"])

    train(model, host_optimizer, seeds)

    assert_equal_lists(weights("r0c1", model), before)
    assert_equal_lists(moments(by_slot(seeds)["r0c1"]), past)


def test_seed_without_parameters_needs_no_optimizer() -> None:
    model, seeds = grown(), SeedOptimizers(lr=0.01)
    plant(model.slot("r0c1"), Stage.TRAINING)
    model.slot("r0c1").seed = nn.Identity()

    train(model, host_sgd(model.host), seeds)

    assert len(seeds) == 0


def test_forgetting_moments_keeps_the_optimizers() -> None:
    model, seeds = grown(), SeedOptimizers(lr=0.01)
    plant(model.slot("r0c1"), Stage.HOLDING)
    train(model, host_sgd(model.host), seeds)

    seeds.forget_moments()

    assert [len(optimizer.state) for optimizer in seeds] == [0]


def gradients_of_shapes(scale: float) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(3)
    shapes = ((8, 3, 3, 3), (8,), (10, 32), (1,), (33, 17))
    return [scale * torch.randn(shape, generator=source) for shape in shapes]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_clipping_equals_torch_bit_for_bit(scale: float) -> None:
    parameters = [nn.Parameter(torch.zeros_like(item)) for item in gradients_of_shapes(scale)]
    for parameter, gradient in zip(parameters, gradients_of_shapes(scale), strict=True):
        parameter.grad = gradient
    nn.utils.clip_grad_norm_(parameters, 1.0)
    clipped = gradients_of_shapes(scale)
    clip_gradients(clipped, 1.0)
    for parameter, gradient in zip(parameters, clipped, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


def test_gradients_are_forgotten() -> None:
    parameter, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = build_sgd([parameter, other], lr=0.1, momentum=0.9)
    parameter.grad = torch.ones(3)
    assert gradients_of(optimizer) == [parameter.grad]
    forget_gradients(optimizer)
    assert parameter.grad is None
    assert gradients_of(optimizer) == []


def test_sgd_moves_as_the_plain_one_does() -> None:
    def moved(optimizer_of: Callable[[list[nn.Parameter]], torch.optim.SGD]) -> list[torch.Tensor]:
        parameters = [nn.Parameter(item) for item in gradients_of_shapes(1.0)]
        optimizer = optimizer_of(parameters)
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = parameter.detach().sin()
            optimizer.step()
        return [parameter.detach() for parameter in parameters]

    plain = moved(partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=5e-4, foreach=False))
    ours = moved(partial(build_sgd, lr=0.1, momentum=0.9, weight_decay=5e-4))
    assert all(map(torch.equal, ours, plain))


@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
def test_following_gradients_equals_the_step_of_the_plain_optimizer(weight_decay: float) -> None:
    """Parameters come late, rest for a while and return, as those of seeds do."""
    resting = [(4,), (4, 1), (), (0, 1, 2, 3, 4), (2,)]
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": weight_decay}
    ours = [nn.Parameter(item) for item in gradients_of_shapes(1.0)]
    plain = [nn.Parameter(item) for item in gradients_of_shapes(1.0)]
    optimizer = build_sgd(ours, **settings)
    reference = torch.optim.SGD(plain, **settings, foreach=False)

    for left_out in resting:
        for parameters in (ours, plain):
            for index, parameter in enumerate(parameters):
                gradient = None if index in left_out else parameter.detach().sin()
                parameter.grad = gradient
        sgd_step(optimizer)
        reference.step()

    assert_equal_lists(ours, plain)
    assert_equal_lists(moments(optimizer), moments(reference))
    optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
