"""Builds a host from its spec and a generator."""

import importlib
import math

import torch
from torch import nn

from esper.kasmina.hosts.cnn import CnnHost
from esper.kasmina.hosts.global_generator import borrowed_global_generator
from esper.kasmina.hosts.segmented import SegmentedHost
from esper.kasmina.hosts.staged import make_host
from esper.kasmina.hosts.transformer import TransformerHost
from esper.kasmina.layers import initialise
from esper.leyline.errors import ContractError, UsageError
from esper.leyline.tasks import CnnHostSpec, HostSpec, ModuleHostSpec, TransformerHostSpec

__all__ = ["build_host"]

TRANSFORMER_STD = 0.02
SAMPLE_SIZE = 2
"""Of the batch that a foreign module is tried with."""


def build_host(spec: HostSpec, generator: torch.Generator) -> SegmentedHost:
    """Build a host on the CPU; its parameters are drawn from this CPU generator only."""
    if isinstance(spec, CnnHostSpec):
        cnn = CnnHost(spec)
        initialise(cnn, generator)
        return cnn
    if isinstance(spec, ModuleHostSpec):
        return _staged(spec, generator)
    if not isinstance(spec, TransformerHostSpec):
        raise ContractError("a probe has no network; its envs are built by ProbeWork")
    transformer = TransformerHost(spec)
    initialise(transformer, generator, linear_std=TRANSFORMER_STD)
    return transformer


def _staged(spec: ModuleHostSpec, generator: torch.Generator) -> SegmentedHost:
    seed = int(torch.randint(2**62, (), generator=generator))
    with borrowed_global_generator(seed):
        model = _made(spec.factory)
    shape = (SAMPLE_SIZE, *spec.sample_shape)
    sample = torch.linspace(-1, 1, math.prod(shape)).view(shape)
    try:
        host = make_host(model, after=spec.after, sample=sample)
    except UsageError as error:
        raise UsageError(f"host {spec.factory!r}: {error}") from error
    if host.topology is not spec.topology:
        raise UsageError(
            f"host {spec.factory!r}: its features are those of a {host.topology} host, and its "
            f"spec says {spec.topology}"
        )
    if host.num_classes != spec.num_classes:
        raise UsageError(
            f"host {spec.factory!r}: it puts out {host.num_classes} logits, and its spec says "
            f"num_classes = {spec.num_classes}"
        )
    return host


def _made(factory: str) -> nn.Module:
    name, _, function = factory.partition(":")
    try:
        model = getattr(importlib.import_module(name), function)()
    except Exception as error:  # a module of the user may raise anything
        raise UsageError(
            f"host {factory!r}: cannot be imported and called as package.module:function: {error!r}"
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"host {factory!r}: returns a {type(model).__name__}, not a module")
    return model
