"""The operations of an exported program as plain JSON types, next to its weights.

A reader calls the operations, which are named as below `torch.ops`, in the order in which they are
listed; docs/export.md has one of 30 lines.
"""

import math
import operator
from typing import Any, Final

import msgspec
import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from esper.leyline.errors import UsageError

__all__ = ["Graph", "Operation", "graph_of"]

JSON_TYPES: Final = (bool, int, str, type(None))


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The call of one operation."""

    name: str
    """Under which its result is used by others."""
    op: str
    """Such as `aten.conv2d.default`, to be found below `torch.ops`, or `operator.mul`."""
    args: Any
    kwargs: Any


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A network's operations in order."""

    input: str
    output: str
    weights: dict[str, str]
    """The name that operations use, to the name of the tensor in the file."""
    operations: list[Operation]


def graph_of(program: ExportedProgram) -> tuple[Graph, dict[str, Tensor]]:
    """Return a program's operations, and its weights by name."""
    tensors = {**program.state_dict, **program.constants}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    inputs = [name for name, spec in specs.items() if spec.kind is InputKind.USER_INPUT]
    names = {name: str(spec.target) for name, spec in specs.items() if name not in inputs}
    (output,) = (spec.arg.name for spec in program.graph_signature.output_specs)
    graph = Graph(
        input=inputs[0],
        output=output,
        weights=names,
        operations=[
            _operation(node)
            for node in program.graph.nodes
            if node.op not in ("placeholder", "output")
        ],
    )
    # Tensors that share storage, as tied weights do, are written once per name.
    weights = {name: tensors[name].detach().contiguous().clone() for name in names.values()}
    return graph, weights


def _operation(node: fx.Node) -> Operation:
    target = node.target
    name = getattr(target, "__name__", "")
    if isinstance(target, torch._ops.OpOverload):
        op = str(target)
    elif target is getattr(operator, name, None):
        op = f"operator.{name}"
    else:
        raise UsageError(
            f"this network uses {target}, which cannot be written as a plain operation; use "
            "--to torch-export"
        )
    return Operation(
        name=node.name,
        op=op,
        args=_plain(node.args),
        kwargs={name: _plain(value) for name, value in node.kwargs.items()},
    )


def _plain(value: object) -> object:
    """Return an argument in types of JSON; what has none is an object of one key: its kind."""
    match value:
        case fx.Node():
            return {"result": value.name}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case torch.dtype() | torch.memory_format() | torch.layout():
            return {"torch": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": str(value)}
    if not isinstance(value, JSON_TYPES):
        raise UsageError(
            f"this network has an operation with a {type(value).__name__} as its argument, which "
            "cannot be written; use --to torch-export"
        )
    return value
