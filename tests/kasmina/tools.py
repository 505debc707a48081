"""What the tests of the body share: seeded generators, tensors, bit equality, RNG snapshots."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

torch.set_num_threads(1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=generator(seed))


def has_same_bits(left: Tensor, right: Tensor) -> bool:
    """Compare as stored, so that NaN equals itself and 0.0 differs from -0.0."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and torch.equal(
            left.contiguous().view(-1).view(torch.uint8),
            right.contiguous().view(-1).view(torch.uint8),
        )
    )


def num_params(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def has_same_state(left: nn.Module, right: nn.Module) -> bool:
    ours, theirs = left.state_dict(), right.state_dict()
    return list(ours) == list(theirs) and all(
        has_same_bits(ours[name], theirs[name]) for name in ours
    )


@contextmanager
def unchanged_global_rng() -> Iterator[None]:
    """Fail when the block draws from torch's global generator."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "torch's global generator was drawn from"
