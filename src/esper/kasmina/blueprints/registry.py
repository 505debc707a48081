"""The seed class of each blueprint and topology; builds seeds and counts their parameters."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch

from esper.kasmina.blueprints import cnn, flex, transformer
from esper.kasmina.blueprints.seed import Noop, Seed
from esper.kasmina.layers import initialise
from esper.leyline.actions import Blueprint, Topology
from esper.leyline.errors import UnknownNameError

__all__ = ["SEEDS", "blueprint_params", "build_seed"]

SEEDS: Final[Mapping[Topology, Mapping[Blueprint, type[Seed]]]] = MappingProxyType(
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


def build_seed(
    topology: Topology, blueprint: Blueprint, channels: int, generator: torch.Generator
) -> Seed:
    """Build a seed on the CPU; its parameters are drawn from this CPU generator only."""
    seed = _seed_class(topology, blueprint, channels)(channels)
    initialise(seed, generator)
    return seed


def blueprint_params(topology: Topology, blueprint: Blueprint, channels: int) -> int:
    """Return the number of parameters of a seed without building it."""
    return _seed_class(topology, blueprint, channels).num_params(channels)


def _seed_class(topology: Topology, blueprint: Blueprint, channels: int) -> type[Seed]:
    seeds = SEEDS[topology]
    if blueprint not in seeds:
        known = (known.id for known in seeds)
        raise UnknownNameError(f"{topology} blueprint", blueprint.id, known)
    seeds[blueprint].check_channels(channels)
    return seeds[blueprint]
