"""The seeds that a run offers only if it asks for them."""

import pytest
import torch
from tests.kasmina.tools import generator, has_same_bits, normal
from torch import Tensor, nn

from esper.kasmina.blueprints import build_seed
from esper.leyline.actions import Topology

CHANNELS = 8
topologies = pytest.mark.parametrize("topology", Topology)


def features(topology: Topology, seed: int = 1) -> Tensor:
    shape = (4, CHANNELS, 6, 6) if topology is Topology.CNN else (4, 6, CHANNELS)
    return normal(*shape, seed=seed)


def learn(seed: nn.Module, topology: Topology, number: int) -> None:
    """Compute the gradients of one batch that asks for an uneven change."""
    x = features(topology, number)
    slopes = torch.linspace(1, 3, x.numel()).view_as(x) * features(topology, number + 100)
    seed.zero_grad()
    (seed(x) * slopes).sum().backward()


def weights(part: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in part.parameters()]


@topologies
def test_a_unit_and_its_copy_part_in_the_first_step(topology: Topology) -> None:
    seed = build_seed(topology, "widen", CHANNELS, generator())
    learn(seed, topology, 1)
    for unit, copy in zip(seed.units.parameters(), seed.copies.parameters(), strict=True):
        assert has_same_bits(unit, copy)
        assert has_same_bits(unit.grad, -copy.grad)
        assert unit.grad.abs().min() > 0
    torch.optim.SGD(seed.parameters(), lr=0.01).step()
    x = features(topology)
    assert not torch.equal(seed(x), x)


def gradient_norm(seed: nn.Module, topology: Topology) -> float:
    learn(seed, topology, 1)
    return float(seed.incoming.weight.grad.norm())


@topologies
def test_first_batch_gives_outgoing_weights_with_the_largest_gradient(topology: Topology) -> None:
    seed = build_seed(topology, "grad_max", CHANNELS, generator())
    largest = gradient_norm(seed, topology)
    columns = seed.outgoing.weight.flatten(1)

    torch.testing.assert_close(columns.T @ columns, torch.eye(CHANNELS // 2), atol=1e-5, rtol=0)
    for number in range(20):
        # It is fitted no more, so these weights stay as they are set here.
        basis = torch.linalg.qr(normal(CHANNELS, CHANNELS // 2, seed=number)).Q
        seed.outgoing.weight.data.copy_(basis.view_as(seed.outgoing.weight))
        assert gradient_norm(seed, topology) < largest


@topologies
def test_gradient_of_the_first_batch_is_that_with_the_fitted_weights(topology: Topology) -> None:
    seed = build_seed(topology, "grad_max", CHANNELS, generator())
    learn(seed, topology, 1)
    first = [part.grad.clone() for part in seed.parameters()]
    learn(seed, topology, 1)
    for before, parameter in zip(first, seed.parameters(), strict=True):
        torch.testing.assert_close(before, parameter.grad)


@topologies
def test_fitting_happens_once_and_only_in_training(topology: Topology) -> None:
    seed = build_seed(topology, "grad_max", CHANNELS, generator())
    born = weights(seed)
    learn(seed.eval(), topology, 1)
    assert all(map(has_same_bits, born, weights(seed)))
    learn(seed.train(), topology, 1)
    fitted = weights(seed)
    assert not all(map(has_same_bits, born, fitted))
    learn(seed, topology, 2)
    assert all(map(has_same_bits, fitted, weights(seed)))


@topologies
def test_weights_that_were_loaded_are_not_fitted_again(topology: Topology) -> None:
    stored = build_seed(topology, "grad_max", CHANNELS, generator()).state_dict()
    seed = nn.ModuleDict({"seed": build_seed(topology, "grad_max", CHANNELS, generator(5))})
    seed.load_state_dict({f"seed.{name}": tensor for name, tensor in stored.items()})
    learn(seed["seed"], topology, 1)
    assert all(map(has_same_bits, stored.values(), weights(seed)))


@topologies
@pytest.mark.parametrize("damage", [float("nan"), float("inf")])
def test_a_batch_that_is_not_finite_does_not_raise(topology: Topology, damage: float) -> None:
    seed = build_seed(topology, "grad_max", CHANNELS, generator())
    x = features(topology)
    x.view(-1)[0] = damage
    seed(x).sum().backward()
    assert all(part.isfinite().all() for part in seed.parameters())
