"""What a network of the user's own must be like to be a host; refused in one sentence otherwise."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from esper.kasmina.hosts.segmented import SegmentedHost
from esper.leyline.actions import Topology
from esper.leyline.errors import UsageError

__all__ = [
    "TOPOLOGY_BY_DIM",
    "check_features",
    "check_host",
    "check_names",
    "check_parts",
    "refusing_errors",
]

TOPOLOGY_BY_DIM: Final = {4: Topology.CNN, 3: Topology.TRANSFORMER}
TOLERANCE: Final = 1e-4


@contextmanager
def refusing_errors(batch: Tensor) -> Iterator[None]:
    """Refuse a model that raises in the block, which runs it on a batch."""
    try:
        yield
    except Exception as error:  # the model's own code
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"the model cannot run a batch of shape {tuple(batch.shape)}: {reason}"
        ) from error


def check_names(model: nn.Module, after: Sequence[str]) -> None:
    """Raise unless `after` names submodules, each once."""
    known = dict(model.named_modules())
    if not after or len(set(after)) != len(after):
        raise UsageError(f"after = {list(after)}: must name at least one submodule, each once")
    for name in after:
        if name not in known or not name:
            raise UsageError(f"after: the model has no submodule {name!r}")


def check_parts(model: nn.Module) -> None:
    """Raise for a module whose random numbers or statistics cannot be kept apart."""
    for name, part in model.named_modules():
        if isinstance(part, _DropoutNd) and type(part) is not nn.Dropout:
            raise UsageError(f"{name}: {type(part).__name__} draws from torch's global generator")
        if isinstance(part, nn.MultiheadAttention | nn.RNNBase) and part.dropout:
            raise UsageError(
                f"{name}: its dropout draws from torch's global generator; set it to 0"
            )
        if isinstance(part, _InstanceNorm) and part.track_running_stats:
            raise UsageError(
                f"{name}: the running statistics of {type(part).__name__} would not fit the host "
                "while a seed is off; set track_running_stats=False"
            )


def check_features(name: str, h: object, batch_size: int) -> None:
    """Raise unless what a submodule puts out can be the input of a seed."""
    if not isinstance(h, Tensor):
        raise UsageError(f"{name!r} puts out a {type(h).__name__}; a slot needs one tensor")
    if h.dim() not in TOPOLOGY_BY_DIM or len(h) != batch_size:
        raise UsageError(
            f"{name!r}: a slot needs features of shape (batch, channels, height, width) or "
            f"(batch, time, channels), not {tuple(h.shape)} for a batch of {batch_size}"
        )


def check_host(host: SegmentedHost, model: nn.Module, names: Sequence[str], sample: Tensor) -> None:
    """Raise unless a host computes what its model does, whatever the mode and size of the batch.

    Args:
        host: the model in stages.
        model: what the host was made of.
        names: the submodules behind which it was cut, in order of execution.
        sample: a batch of inputs.
    """
    twice = torch.cat([sample, sample])
    shapes = _shapes(host.eval(), sample)
    trial = copy.deepcopy(host).train()  # a pass in training mode changes running statistics
    trial.set_dropout_generator(torch.Generator())
    state = torch.get_rng_state()
    found = {"a batch of another size": _shapes(host, twice), "training": _shapes(trial, twice)}
    if not torch.equal(state, torch.get_rng_state()):
        raise UsageError(
            "the model draws from torch's global generator, as the functions of dropout do; "
            "nn.Dropout is supported"
        )
    for case, others in found.items():
        for name, shape, other in zip([*names, "logits"], shapes, others, strict=True):
            if shape != other:
                raise UsageError(
                    f"{name!r}: the shape behind it changes from {shape} to {other} with {case}; "
                    "a host needs one shape"
                )
    logits, expected = host(twice), model.eval()(twice)
    if not torch.allclose(logits, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        raise UsageError("the model computes something else when it is cut into stages")


def _shapes(host: SegmentedHost, x: Tensor) -> list[tuple[int, ...]]:
    """Return the shape of the features at the end of each segment and of the logits.

    Without the batch, which must be the first dimension of each.
    """
    outputs = []
    with refusing_errors(x):
        previous, h = None, x
        for segment in host.execution_order():
            h = host.forward_to_segment(segment, h, previous)
            outputs.append(h)
            previous = segment
        assert previous is not None, "a host has a slot"
        outputs.append(host.forward_from_segment(previous, h))
    for output in outputs:
        if len(output) != len(x):
            raise UsageError(
                f"the model puts out {tuple(output.shape)} for a batch of {len(x)}; it must have "
                "one row per sample"
            )
    return [tuple(output.shape[1:]) for output in outputs]
