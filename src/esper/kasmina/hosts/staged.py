"""A host made of any module that can be cut behind some of its submodules."""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from esper.kasmina.hosts.dropout import SeededDropout
from esper.kasmina.hosts.global_generator import borrowed_global_generator
from esper.kasmina.hosts.module_checks import (
    TOPOLOGY_BY_DIM,
    check_features,
    check_host,
    check_names,
    check_parts,
    refusing_errors,
)
from esper.kasmina.hosts.segmented import SegmentedHost
from esper.leyline.actions import Topology
from esper.leyline.errors import UsageError
from esper.leyline.slots import InjectionSpec, Surface, format_slot_id

__all__ = ["StagedHost", "make_host"]

_TRACING: Final = threading.Lock()
"""Held by a trace: it replaces `nn.Module.__call__` and puts back what it found."""


class StagedHost(SegmentedHost):
    """A module in stages, with a slot behind each but the last; slot i is named r0ci."""

    def __init__(
        self,
        stages: Sequence[nn.Module],
        head: nn.Module,
        features: Sequence[Tensor],
        *,
        num_classes: int,
    ) -> None:
        specs = tuple(_injection_specs(features))
        super().__init__(specs, dict(zip((spec.slot_id for spec in specs), stages, strict=True)))
        self.head = head
        self.num_classes = num_classes
        self._topology = TOPOLOGY_BY_DIM[features[0].dim()]

    @property
    def topology(self) -> Topology:
        """Return the host's topology."""
        return self._topology

    def _enter(self, x: Tensor) -> Tensor:
        return x

    def _exit(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x)
        return logits


def make_host(model: nn.Module, *, after: Sequence[str], sample: Tensor) -> StagedHost:
    """Cut a copy of a module behind the named submodules, each of which gets a slot.

    Args:
        model: maps a batch to logits; its parameters are copied as they are.
        after: names of submodules, as in `named_modules()`, in any order.
        sample: a batch of inputs, from which the channels of each slot are found.
    """
    model = copy.deepcopy(model)
    check_names(model, after)
    check_parts(model)
    _seed_dropout(model)
    graph = _traced(model, after)
    stages: list[nn.Module] = list(_segments(model, graph, after))
    calls = (node for node in graph.nodes if node.op == "call_module")
    names = [str(node.target) for node in calls if node.target in after]
    # Should the model draw from the global generator, it does not show outside.
    with borrowed_global_generator(0), torch.no_grad():
        *features, logits = _boundaries(stages, names, sample)
        kinds = {h.dim(): name for h, name in zip(features, names, strict=True)}
        if len(kinds) > 1:
            first, other = sorted(kinds.values())
            raise UsageError(f"{first!r} and {other!r}: all slots need features of the same kind")
        host = StagedHost(stages[:-1], stages[-1], features, num_classes=logits.shape[-1])
        check_host(host, model, names, sample)
    return host.train()


def _seed_dropout(model: nn.Module) -> None:
    """Replace dropout by one that draws from a generator of the env's own."""
    for name, part in list(model.named_modules()):
        if type(part) is nn.Dropout:
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], SeededDropout(part.p))


class _Tracer(fx.Tracer):
    """Traces a module without noticing those that other threads run meanwhile.

    fx replaces the call and the attributes of all modules of the process while it traces, and a
    lane may build a host while the policy runs on the control thread.
    """

    def __init__(self, leaves: Sequence[str]) -> None:
        super().__init__()
        self._leaves = frozenset(leaves)
        self._thread = threading.get_ident()

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self._leaves or isinstance(m, SeededDropout):
            return True
        return super().is_leaf_module(m, module_qualified_name)


def _traced(model: nn.Module, after: Sequence[str]) -> fx.Graph:
    training, graph = (_trace(model.train(mode), after) for mode in (True, False))
    if training.python_code("self").src != graph.python_code("self").src:
        # A trace keeps what `self.training` was, so one of the two modes would be wrong.
        raise UsageError(
            "the model's forward depends on self.training; leave that to submodules such as "
            "nn.Dropout and nn.BatchNorm2d"
        )
    num_inputs = sum(node.op == "placeholder" for node in graph.nodes)
    if num_inputs != 1:
        raise UsageError(f"the model has {num_inputs} inputs; a host has one")
    return graph


def _trace(model: nn.Module, after: Sequence[str]) -> fx.Graph:
    try:
        with _TRACING:
            return _Tracer(after).trace(model)
    except Exception as error:  # tracing runs the model's own code
        raise UsageError(f"the model cannot be cut into stages: {error}") from error


def _segments(model: nn.Module, graph: fx.Graph, after: Sequence[str]) -> Iterator[fx.GraphModule]:
    """Yield the parts of a graph between the cuts, which share the model's parameters."""
    pending: list[fx.Node] = []
    start: fx.Node | None = None
    to_come = set(after)
    for node in graph.nodes:
        if node.op == "placeholder":
            start = node
            continue
        pending.append(node)
        if node.op == "call_module" and node.target in after:
            if node.target not in to_come:
                raise UsageError(f"after: the model runs {node.target!r} more than once")
            to_come.remove(str(node.target))
            assert start is not None
            yield _segment(model, pending, start, node)
            pending, start = [], node
    for name in to_come:
        raise UsageError(f"after: {name!r} runs inside of another stage, or never")
    assert start is not None
    yield _segment(model, pending, start, None)


def _segment(
    model: nn.Module, nodes: Sequence[fx.Node], start: fx.Node, end: fx.Node | None
) -> fx.GraphModule:
    part = fx.Graph()
    copies = {start: part.placeholder("x")}
    for node in nodes:
        for needed in node.all_input_nodes:
            if needed not in copies and needed.op == "get_attr":
                copies[needed] = part.node_copy(needed, copies.__getitem__)
            elif needed not in copies:
                raise UsageError(
                    f"the model cannot be cut behind {start.target!r}: {needed.name!r} from before "
                    f"is used again by {node.name!r}"
                )
        copies[node] = part.node_copy(node, copies.__getitem__)
    if end is not None:
        part.output(copies[end])
    return fx.GraphModule(model, part)


class _Untouched(nn.Module):
    """Runs a stage on a copy of its input, which it would change in place."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: Tensor) -> Tensor:
        """Run the stage."""
        changed: Tensor = self.stage(x.clone())
        return changed


def _boundaries(stages: list[nn.Module], names: Sequence[str], sample: Tensor) -> list[Tensor]:
    """Return the features behind each cut, then the logits; protect what would change in place."""
    seen: list[Tensor] = []
    x = sample.clone()
    for index, stage in enumerate(stages):
        version = x._version
        with refusing_errors(sample):
            output: object = stage.eval()(x)
        if x._version != version:
            stages[index] = _Untouched(stage)
        if index < len(names):
            check_features(names[index], output, len(sample))
        if not isinstance(output, Tensor):
            raise UsageError(f"the model puts out a {type(output).__name__} instead of logits")
        x = output
        seen.append(x)
    return seen


def _injection_specs(features: Sequence[Tensor]) -> Iterator[InjectionSpec]:
    for index, h in enumerate(features):
        yield InjectionSpec(
            slot_id=format_slot_id(0, index),
            channels=h.shape[1] if h.dim() == 4 else h.shape[2],
            order=index,
            surface=Surface.BLOCK_END,
            layer_range=(index, index + 1),
            position=(index + 1) / (len(features) + 1),
        )
