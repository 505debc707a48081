"""Optimizers without decorators do what torch's own do."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from esper.kasmina.plain_optim import PlainAdamW, PlainSGD

Build = Callable[[list[nn.Parameter]], Optimizer]

PAIRS: dict[str, tuple[Build, Build]] = {
    "sgd": (
        lambda parameters: PlainSGD(parameters, lr=0.1, momentum=0.9, foreach=True),
        lambda parameters: SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
    ),
    "adamw": (
        lambda parameters: PlainAdamW(parameters, lr=0.1, weight_decay=0.1, fused=True),
        lambda parameters: AdamW(parameters, lr=0.1, weight_decay=0.1, fused=True),
    ),
}
pairs = pytest.mark.parametrize(("plain", "torchs"), PAIRS.values(), ids=PAIRS)


def make_parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(7)
    return [nn.Parameter(torch.randn(size, generator=generator)) for size in (3, 17)]


def take_steps(optimizer: Optimizer, parameters: list[nn.Parameter], num_steps: int) -> None:
    for _ in range(num_steps):
        optimizer.zero_grad(set_to_none=True)
        sum(parameter.sin().sum() for parameter in parameters).backward()
        optimizer.step()


@pairs
def test_steps_have_the_bits_of_torchs_own(plain: Build, torchs: Build) -> None:
    ours, theirs = make_parameters(), make_parameters()
    take_steps(plain(ours), ours, 3)
    take_steps(torchs(theirs), theirs, 3)
    assert all(map(torch.equal, ours, theirs))


@pairs
def test_moments_of_torchs_own_are_taken_over(plain: Build, torchs: Build) -> None:
    parameters = make_parameters()
    before = torchs(parameters)
    take_steps(before, parameters, 2)
    after = plain(parameters)
    after.load_state_dict(before.state_dict())
    expected = [item.detach().clone().requires_grad_() for item in parameters]
    other = torchs(expected)
    other.load_state_dict(deepcopy(after.state_dict()))
    take_steps(after, parameters, 1)
    take_steps(other, expected, 1)
    assert all(map(torch.equal, parameters, expected))


def test_step_is_no_part_of_the_gradient() -> None:
    [parameter, _] = make_parameters()
    take_steps(PlainSGD([parameter], lr=0.1), [parameter], 1)
    assert parameter.is_leaf
    assert parameter.grad_fn is None
