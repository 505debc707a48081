"""Builds a host from its spec and a generator."""

import torch

from esper.kasmina.hosts.cnn import CnnHost
from esper.kasmina.hosts.transformer import TransformerHost
from esper.kasmina.layers import initialise
from esper.leyline.errors import ContractError
from esper.leyline.tasks import CnnHostSpec, HostSpec, TransformerHostSpec

__all__ = ["build_host"]

TRANSFORMER_STD = 0.02


def build_host(spec: HostSpec, generator: torch.Generator) -> CnnHost | TransformerHost:
    """Build a host on the CPU; its parameters are drawn from this CPU generator only."""
    if isinstance(spec, CnnHostSpec):
        cnn = CnnHost(spec)
        initialise(cnn, generator)
        return cnn
    if not isinstance(spec, TransformerHostSpec):
        raise ContractError("a probe has no network; its envs are built by ProbeWork")
    transformer = TransformerHost(spec)
    initialise(transformer, generator, linear_std=TRANSFORMER_STD)
    return transformer
