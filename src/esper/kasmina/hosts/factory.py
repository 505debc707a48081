"""Builds a host from its spec and a generator."""

import torch

from esper.kasmina.hosts.cnn import CnnHost
from esper.kasmina.hosts.transformer import TransformerHost
from esper.kasmina.layers import initialise
from esper.leyline.tasks import CnnHostSpec, HostSpec

__all__ = ["build_host"]

TRANSFORMER_STD = 0.02


def build_host(spec: HostSpec, generator: torch.Generator) -> CnnHost | TransformerHost:
    """Build a host on the CPU; its parameters are drawn from this CPU generator only."""
    if isinstance(spec, CnnHostSpec):
        cnn = CnnHost(spec)
        initialise(cnn, generator)
        return cnn
    transformer = TransformerHost(spec)
    initialise(transformer, generator, linear_std=TRANSFORMER_STD)
    return transformer
