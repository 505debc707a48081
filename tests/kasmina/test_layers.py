"""The layers of hosts and seeds: groups, initial values, convolutions of one pixel."""

import math

import pytest
import torch
from tests.kasmina.tools import generator, unchanged_global_rng
from torch import Tensor, nn
from torch.nn import functional

from esper.kasmina.layers import (
    Conv2d,
    Embedding,
    Linear,
    ZeroGroupNorm,
    ZeroLinear,
    initialise,
    num_groups,
)


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(1, 1), (7, 1), (8, 8), (16, 1), (32, 2), (48, 2), (64, 4), (128, 8), (256, 16), (512, 32)],
)
def test_group_counts_follow_the_rule(channels: int, groups: int) -> None:
    assert num_groups(channels) == groups


def test_initial_values_have_the_promised_spread_and_come_from_the_generator_alone() -> None:
    parts = nn.ModuleList([Conv2d(64, 64, 3), Linear(256, 256), Embedding(256, 256)])
    with unchanged_global_rng():
        initialise(parts, generator())
    spreads = [
        float(parameter.detach().std()) for parameter in parts.parameters() if parameter.dim() > 1
    ]
    assert spreads == pytest.approx([math.sqrt(2 / (64 * 9)), 1 / 16, 0.02], rel=0.02)
    assert (parts.get_parameter("1.bias") == 0).all()


def test_a_spread_for_linear_layers_can_be_asked_for() -> None:
    layer = Linear(256, 256)
    initialise(layer, generator(), linear_std=0.02)
    assert float(layer.weight.detach().std()) == pytest.approx(0.02, rel=0.02)


def test_zero_layers_stay_zero() -> None:
    layer, norm = ZeroLinear(4, 4), ZeroGroupNorm(4)
    initialise(nn.ModuleList([layer, norm]), generator())
    for parameter in (*layer.parameters(), *norm.parameters()):
        assert (parameter == 0).all()


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("size", [1, 8])
def test_a_convolution_of_one_pixel_is_a_convolution(
    memory_format: torch.memory_format, size: int
) -> None:
    layer = Conv2d(3, 5, 1)
    initialise(layer, generator())
    x = torch.randn(4, 3, size, size, generator=generator(), dtype=torch.double)
    x = x.contiguous(memory_format=memory_format).requires_grad_()
    layer.double()
    found = layer(x)
    expected = functional.conv2d(x, layer.weight)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)
    for one, other in zip(gradients(found, x, layer), gradients(expected, x, layer), strict=True):
        torch.testing.assert_close(one, other)
    assert found.is_contiguous(memory_format=torch.channels_last)


def gradients(y: Tensor, x: Tensor, layer: Conv2d) -> tuple[Tensor, ...]:
    return torch.autograd.grad((y * torch.arange(y.numel()).view(y.shape)).sum(), (x, layer.weight))


def test_a_convolution_of_one_pixel_is_the_same_with_and_without_gradients() -> None:
    layer = Conv2d(4, 8, 1)
    initialise(layer, generator())
    x = torch.randn(3, 4, 5, 5, generator=generator())
    learning = layer(x)
    layer.requires_grad_(False)
    assert torch.equal(layer(x), learning)
