"""Blueprints of users: how their seeds are built, and what is checked before they are accepted."""

import re
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, NoReturn, TypeAlias

import torch
from torch import Tensor, nn

from esper.kasmina.hosts.global_generator import borrowed_global_generator
from esper.kasmina.layers import initialise
from esper.leyline.actions import BLUEPRINTS, Topology
from esper.leyline.errors import PluginError

__all__ = ["BuildSeed", "ForeignBlueprint", "check_seed"]

BuildSeed: TypeAlias = Callable[[int], nn.Module]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TOLERANCE: Final = 1e-5
"""How far the output of a new seed may be from its input, which has a deviation of 1."""
_SIZES: Final = (4, 2, 7)
"""Heights and widths, or lengths, that features are checked with."""


class ForeignBlueprint(NamedTuple):
    """A blueprint that a user has registered."""

    name: str
    build: BuildSeed

    def built(self, channels: int, generator: torch.Generator) -> nn.Module:
        """Build a seed whose parameters depend on this CPU generator only."""
        source = int(torch.randint(2**62, (), generator=generator))
        with borrowed_global_generator(source):
            try:
                seed = self.build(channels)
            except Exception as error:  # a user's code may raise anything
                _refuse(self.name, f"cannot be built for {channels} channels: {error!r}", error)
        if not isinstance(seed, nn.Module):
            _refuse(self.name, f"its builder returns a {type(seed).__name__}, not a module")
        # Layers of Esper draw nothing when they are built.
        initialise(seed, generator)
        return seed


def check_seed(
    name: str, build: BuildSeed, topology: Topology, channels: int, known: Collection[str]
) -> None:
    """Raise unless the seeds of a new blueprint can grow.

    A seed keeps the shape of features of any size, is the identity at birth, has parameters with a
    finite gradient, and draws nothing from torch's global generator while it runs.
    """
    if _NAME.fullmatch(name) is None:
        _refuse(name, "a name has up to 32 lower-case letters, digits and underscores")
    if name in known or name in BLUEPRINTS:
        _refuse(name, "a blueprint of this name already exists")
    generator = torch.Generator().manual_seed(0)
    seed = ForeignBlueprint(name, build).built(channels, generator)
    if not any(parameter.requires_grad for parameter in seed.parameters()):
        _refuse(name, "has no trainable parameters")
    for size in _SIZES:
        shape = (2, channels, size, size) if topology is Topology.CNN else (2, size, channels)
        _check_birth(name, seed, torch.randn(shape, generator=generator))
    _check_gradient(name, seed)


def _check_birth(name: str, seed: nn.Module, x: Tensor) -> None:
    """Raise unless the seed is the identity; leave the gradients of the last pass."""
    before = torch.get_rng_state()
    for is_training in (False, True):
        seed.train(is_training).zero_grad()
        try:
            output = seed(x.clone())
        except Exception as error:  # a user's code may raise anything
            _refuse(name, f"fails on features of shape {tuple(x.shape)}: {error!r}", error)
        if not isinstance(output, Tensor) or output.shape != x.shape:
            found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            _refuse(name, f"maps shape {tuple(x.shape)} to {found}; a seed must preserve the shape")
        change = (output - x).abs().max()
        if not change <= _TOLERANCE:
            _refuse(
                name,
                f"changes its input by up to {float(change.detach()):.2g} at birth; a new seed "
                "must return its input: initialise its last layer with zeros",
            )
    if not torch.equal(before, torch.get_rng_state()):
        _refuse(name, "draws from torch's global generator while it runs, as dropout does")
    if output.requires_grad:
        # A cotangent without symmetry, so that sums do not cancel.
        output.backward(torch.linspace(-1, 2, output.numel()).view_as(output))


def _check_gradient(name: str, seed: nn.Module) -> None:
    gradients = [part.grad for part in seed.parameters() if part.grad is not None]
    if not all(gradient.isfinite().all() for gradient in gradients):
        _refuse(name, "has a gradient that is not finite at birth")
    if not any(gradient.any() for gradient in gradients):
        _refuse(name, "has no gradient at birth, so it could never learn: zero one layer, not two")


def _refuse(name: str, reason: str, cause: BaseException | None = None) -> NoReturn:
    raise PluginError("blueprint", name, reason) from cause
