"""The blueprints of each topology: those of every run, optional ones, and those of users."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Final

import torch
from torch import nn

from esper.kasmina.blueprints import cnn, flex, optional, transformer
from esper.kasmina.blueprints.foreign import BuildSeed, ForeignBlueprint, check_seed
from esper.kasmina.blueprints.seed import Noop, Seed
from esper.kasmina.layers import initialise
from esper.leyline.actions import Blueprint, Topology
from esper.leyline.errors import UnknownNameError
from esper.leyline.plugins import FindPlugins, call_plugins, installed_plugins

__all__ = [
    "ENTRY_POINT_GROUP",
    "OPTIONAL_SEEDS",
    "SEEDS",
    "BlueprintRegistry",
    "blueprint_params",
    "build_seed",
    "check_registered",
    "is_installed_blueprint",
    "register_blueprint",
]

ENTRY_POINT_GROUP: Final = "esper.blueprints"
"""Each entry point names a function without parameters that calls register_blueprint."""

SEEDS: Final[Mapping[Topology, Mapping[str, type[Seed]]]] = MappingProxyType(
    {
        Topology.CNN: MappingProxyType(
            {
                Blueprint.NOOP: Noop,
                Blueprint.CONV_LIGHT: cnn.ConvLight,
                Blueprint.ATTENTION: cnn.ChannelAttention,
                Blueprint.NORM: cnn.ImageNorm,
                Blueprint.DEPTHWISE: cnn.Depthwise,
                Blueprint.BOTTLENECK: cnn.Bottleneck,
                Blueprint.CONV_SMALL: cnn.ConvSmall,
                Blueprint.CONV_HEAVY: cnn.ConvHeavy,
            }
        ),
        Topology.TRANSFORMER: MappingProxyType(
            {
                Blueprint.NOOP: Noop,
                Blueprint.ATTENTION: transformer.Attention,
                Blueprint.NORM: transformer.TextNorm,
                Blueprint.LORA: transformer.Lora,
                Blueprint.LORA_LARGE: transformer.LoraLarge,
                Blueprint.MLP_SMALL: transformer.MlpSmall,
                Blueprint.MLP: transformer.Mlp,
                Blueprint.FLEX_ATTENTION: flex.FlexAttention,
            }
        ),
    }
)
"""The documentation quotes each class's `structure` and `birth`."""

OPTIONAL_SEEDS: Final[Mapping[Topology, Mapping[str, type[Seed]]]] = MappingProxyType(
    {
        Topology.CNN: MappingProxyType(
            {"widen": optional.WideImage, "grad_max": optional.GradMaxImage}
        ),
        Topology.TRANSFORMER: MappingProxyType(
            {"widen": optional.WideText, "grad_max": optional.GradMaxText}
        ),
    }
)
"""What Esper ships and a run offers only if its `blueprints` name it."""


def installed_blueprints() -> Iterable[EntryPoint]:
    """Return the entry points of installed packages."""
    return installed_plugins(ENTRY_POINT_GROUP)


@dataclass(eq=False, slots=True)
class BlueprintRegistry:
    """The known blueprints; plug-ins are loaded once, on first access."""

    find_plugins: FindPlugins = installed_blueprints
    _seeds: dict[Topology, dict[str, type[Seed] | ForeignBlueprint]] = field(init=False)
    _of_this_process: set[str] = field(default_factory=set)
    """Names that a script has registered itself."""
    _is_asking: bool = False
    _has_asked: bool = False

    def __post_init__(self) -> None:
        self._seeds = {
            topology: {**SEEDS[topology], **OPTIONAL_SEEDS[topology]} for topology in Topology
        }

    def register(self, name: str, build: BuildSeed, topology: Topology, channels: int) -> None:
        """Add a blueprint after checking a seed of it."""
        check_seed(name, build, topology, channels, known=self._seeds[topology])
        self._seeds[topology][name] = ForeignBlueprint(name, build)
        if not self._is_asking:
            self._of_this_process.add(name)

    def of_topology(self, topology: Topology) -> Mapping[str, type[Seed] | ForeignBlueprint]:
        """Return every blueprint that grows in a kind of host."""
        self._ask_plugins()
        return self._seeds[topology]

    def named(self, topology: Topology, name: str) -> type[Seed] | ForeignBlueprint:
        """Return a blueprint that grows in a kind of host."""
        seeds = self.of_topology(topology)
        if name not in seeds:
            raise UnknownNameError(f"{topology} blueprint", str(name), map(str, seeds))
        return seeds[name]

    def is_installed(self, name: str) -> bool:
        """Return whether the blueprint is available in every process.

        Blueprints that a script registers itself exist in its own process only.
        """
        self._ask_plugins()
        return name not in self._of_this_process

    def _ask_plugins(self) -> None:
        if self._has_asked:
            return
        self._has_asked = self._is_asking = True
        try:
            call_plugins("blueprint", self.find_plugins())
        finally:
            self._is_asking = False


_REGISTRY: Final = BlueprintRegistry()


def register_blueprint(
    name: str, build: BuildSeed, *, topology: Topology = Topology.CNN, channels: int = 8
) -> None:
    """Register a custom blueprint, so that runs can name it in `training.blueprints`.

    Args:
        name: lower-case letters, digits and underscores.
        build: returns a new seed for some number of channels, such as a class of modules.
        topology: the kind of hosts that it grows in; register it twice for both.
        channels: the number of channels that a seed is built and checked with.
    """
    _REGISTRY.register(name, build, topology, channels)


def check_registered(topology: Topology, names: tuple[str, ...]) -> None:
    """Raise if one of these blueprints is unknown, or does not grow in this kind of host."""
    for name in names:
        _REGISTRY.named(topology, name)


def builders_of(topology: Topology, names: tuple[str, ...]) -> tuple[object, ...]:
    """Return what builds the seeds of these blueprints: classes and functions."""
    known = (_REGISTRY.named(topology, name) for name in names)
    return tuple(item.build if isinstance(item, ForeignBlueprint) else item for item in known)


def is_installed_blueprint(name: str) -> bool:
    """Return whether the blueprint is available in every process, not only in this one."""
    return _REGISTRY.is_installed(name)


def build_seed(
    topology: Topology, blueprint: str, channels: int, generator: torch.Generator
) -> nn.Module:
    """Build a seed on the CPU; its parameters are drawn from this CPU generator only."""
    known = _REGISTRY.named(topology, blueprint)
    if isinstance(known, ForeignBlueprint):
        return known.built(channels, generator)
    known.check_channels(channels)
    seed = known(channels)
    initialise(seed, generator)
    seed.finish_initialisation()
    return seed


def blueprint_params(topology: Topology, blueprint: str, channels: int) -> int:
    """Return the number of parameters of a seed."""
    known = _REGISTRY.named(topology, blueprint)
    if isinstance(known, ForeignBlueprint):
        seed = known.built(channels, torch.Generator())
        return sum(parameter.numel() for parameter in seed.parameters())
    known.check_channels(channels)
    return known.num_params(channels)
