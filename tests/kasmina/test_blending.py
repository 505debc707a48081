"""Blending operators against their formulas, and the gate network."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kasmina.tools import generator, has_same_bits, normal, num_params, unchanged_global_rng
from torch import Tensor

from esper.kasmina.blending import (
    GateNetwork,
    blend_add,
    blend_gate,
    blend_multiply,
)
from esper.leyline.actions import Topology

Blend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
SHAPE = (2, 3, 4, 4)


def add(h: Tensor, s: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    return blend_add(h, s, alpha)


def gate(h: Tensor, s: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    return blend_gate(h, s, torch.full((h.shape[0], 1, 1, 1), 0.25), alpha)


blends = pytest.mark.parametrize("blend", [add, blend_multiply, gate])


def exact(blend: Blend, h: Tensor, s: Tensor, x: Tensor, alpha: float) -> Tensor:
    """Evaluate the formula in float64."""
    h, s, x = h.double(), s.double(), x.double()
    if blend is blend_multiply:
        return h * (1 + alpha * torch.tanh(s - x))
    return h + alpha * (0.25 if blend is gate else 1.0) * (s - h)


@blends
@settings(max_examples=25, deadline=None)
@given(alpha=st.floats(0.0, 1.0), seed=st.integers(0, 1000))
def test_blends_follow_their_formula(blend: Blend, alpha: float, seed: int) -> None:
    h, s, x = (normal(*SHAPE, seed=seed + offset) for offset in range(3))
    blended = blend(h, s, x, torch.tensor(alpha))
    torch.testing.assert_close(blended.double(), exact(blend, h, s, x, alpha), rtol=0, atol=2e-6)


@blends
def test_a_finite_seed_changes_no_bit_at_alpha_zero(blend: Blend) -> None:
    h, s, x = normal(*SHAPE), 1e30 * normal(*SHAPE, seed=2), normal(*SHAPE, seed=3)
    assert has_same_bits(blend(h, s, x, torch.tensor(0.0)), h)


@blends
def test_a_seed_that_is_its_input_changes_no_bit_at_any_alpha(blend: Blend) -> None:
    h = normal(*SHAPE)
    for alpha in (0.1, 0.5, 0.9, 1.0):
        assert has_same_bits(blend(h, h.clone(), h, torch.tensor(alpha)), h)


def test_a_broken_seed_is_not_hidden_by_alpha_zero() -> None:
    h, s = normal(*SHAPE), torch.full(SHAPE, torch.inf)
    assert blend_add(h, s, torch.tensor(0.0)).isnan().all()


def test_adding_at_alpha_one_returns_the_seed_bit_for_bit() -> None:
    h, s = normal(*SHAPE), 1e4 * normal(*SHAPE, seed=2)
    assert has_same_bits(blend_add(h, s, torch.tensor(1.0)), s)


def test_the_multiplier_stays_between_one_minus_and_one_plus_alpha() -> None:
    h, s, x = torch.ones(SHAPE), 100 * normal(*SHAPE, seed=2), normal(*SHAPE, seed=3)
    blended = blend_multiply(h, s, x, torch.tensor(0.5))
    assert blended.min() == 0.5
    assert blended.max() == 1.5


@blends
def test_gradients_follow_the_formula(blend: Blend) -> None:
    tensors = [normal(2, 2, 2, 2, seed=seed).double().requires_grad_() for seed in range(3)]
    alpha = torch.tensor(0.3, dtype=torch.float64)
    assert torch.autograd.gradcheck(blend, (*tensors, alpha), check_undefined_grad=False)


def test_adding_splits_the_gradient_between_host_and_seed() -> None:
    h, s = normal(*SHAPE).requires_grad_(), normal(*SHAPE, seed=2).requires_grad_()
    blend_add(h, s, torch.tensor(0.25)).sum().backward()
    assert h.grad is not None
    assert s.grad is not None
    assert (h.grad == 0.75).all()
    assert (s.grad == 0.25).all()


def test_a_gate_gets_the_gradient_of_what_it_lets_through() -> None:
    h, s = normal(*SHAPE), normal(*SHAPE, seed=2)
    gates = torch.full((2, 1, 1, 1), 0.5, requires_grad=True)
    blend_gate(h, s, gates, torch.tensor(0.5)).sum().backward()
    expected = 0.5 * (s - h).sum(dim=(1, 2, 3), keepdim=True)
    torch.testing.assert_close(gates.grad, expected)


@blends
def test_an_alpha_per_sample_equals_each_samples_own_alpha(blend: Blend) -> None:
    h, s, x = (normal(*SHAPE, seed=seed) for seed in range(3))
    alphas = torch.tensor([0.0, 0.7]).view(2, 1, 1, 1)
    blended = blend(h, s, x, alphas)
    for index in range(2):
        one = slice(index, index + 1)
        assert has_same_bits(blended[one], blend(h[one], s[one], x[one], alphas[index, 0, 0, 0]))


@blends
@pytest.mark.parametrize("is_seed_channels_last", [False, True])
def test_the_hosts_memory_format_survives(blend: Blend, is_seed_channels_last: bool) -> None:
    plain = [normal(*SHAPE, seed=seed) for seed in range(3)]
    layouts = [torch.channels_last] + 2 * [
        torch.channels_last if is_seed_channels_last else torch.contiguous_format
    ]
    h, s, x = (
        tensor.contiguous(memory_format=layout)
        for tensor, layout in zip(plain, layouts, strict=True)
    )
    blended = blend(h, s, x, torch.tensor(0.3))
    assert blended.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(blended, blend(*plain, torch.tensor(0.3)))


@blends
@pytest.mark.parametrize("host_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("seed_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(), (2, 1, 1, 1)])
def test_the_hosts_dtype_survives(
    blend: Blend, host_dtype: torch.dtype, seed_dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    h = normal(*SHAPE).to(host_dtype).requires_grad_()
    s = normal(*SHAPE, seed=2).to(seed_dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        blended = blend(h, s, h, torch.full(shape, 0.5))
    blended.float().sum().backward()
    assert blended.dtype == host_dtype
    assert s.grad is not None
    assert s.grad.dtype == seed_dtype


@pytest.mark.parametrize("topology", Topology)
@pytest.mark.parametrize(
    ("channels", "count"), [(8, 81), (16, 145), (32, 273), (64, 1057), (128, 4161), (384, 37057)]
)
def test_gate_networks_have_the_known_size(topology: Topology, channels: int, count: int) -> None:
    assert num_params(GateNetwork(channels, topology)) == count


@pytest.mark.parametrize(
    ("topology", "shape", "gate_shape"),
    [
        (Topology.CNN, (4, 8, 3, 5), (4, 1, 1, 1)),
        (Topology.TRANSFORMER, (4, 7, 8), (4, 7, 1)),
    ],
)
def test_gates_lie_between_zero_and_one_and_broadcast(
    topology: Topology, shape: tuple[int, ...], gate_shape: tuple[int, ...]
) -> None:
    gates = GateNetwork(8, topology, generator())(100 * normal(*shape))
    assert gates.shape == gate_shape
    assert ((gates >= 0) & (gates <= 1)).all()


def test_a_transformers_gate_never_looks_ahead() -> None:
    network = GateNetwork(8, Topology.TRANSFORMER, generator())
    x = normal(2, 6, 8)
    changed = x.clone()
    changed[:, 4:] += 1
    assert has_same_bits(network(x)[:, :4], network(changed)[:, :4])
    assert not torch.equal(network(x)[:, 4:], network(changed)[:, 4:])


def test_a_transformers_gate_reads_the_mean_of_the_positions_so_far() -> None:
    network = GateNetwork(8, Topology.TRANSFORMER, generator())
    x = normal(2, 6, 8)
    alone = network(x[:, :4].mean(dim=1, keepdim=True))
    torch.testing.assert_close(network(x)[:, 3:4], alone)


def test_gate_networks_are_drawn_from_their_generator_alone() -> None:
    with unchanged_global_rng():
        first, second, other = (
            GateNetwork(8, Topology.CNN, generator(seed)).hidden.weight for seed in (0, 0, 1)
        )
    assert has_same_bits(first, second)
    assert not torch.equal(first, other)
