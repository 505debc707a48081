"""Builds a host from its spec and a generator."""

import importlib
import threading
from typing import Final

import torch
from torch import nn

from esper.kasmina.hosts.cnn import CnnHost
from esper.kasmina.hosts.segmented import SegmentedHost
from esper.kasmina.hosts.staged import make_host
from esper.kasmina.hosts.transformer import TransformerHost
from esper.kasmina.layers import initialise
from esper.leyline.errors import ContractError, UsageError
from esper.leyline.tasks import CnnHostSpec, HostSpec, ModuleHostSpec, TransformerHostSpec

__all__ = ["build_host"]

TRANSFORMER_STD = 0.02


_GLOBAL_GENERATOR: Final = threading.Lock()
"""Foreign modules draw their parameters from torch's global generator; one at a time."""


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
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _made(spec.factory)
    host = make_host(model, after=spec.after, sample=torch.zeros(2, *spec.sample_shape))
    if host.topology is not spec.topology:
        raise UsageError(
            f"host {spec.factory}: its features are those of a {host.topology} host, and its spec "
            f"says {spec.topology}"
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
