"""Batch norms that use the statistics of the batch, for networks that were never trained so."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["batch_norms", "batch_statistics"]


def batch_norms(module: nn.Module) -> tuple[_BatchNorm, ...]:
    """Return the norms of a module that normalise by running statistics in evaluation mode."""
    found = (part for part in module.modules() if isinstance(part, _BatchNorm))
    return tuple(norm for norm in found if norm.track_running_stats)


@contextmanager
def batch_statistics(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Let these norms use the statistics of the batch, and keep none of them."""
    modes = [norm.training for norm in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for norm, mode in zip(norms, modes, strict=True):
            norm.training, norm.track_running_stats = mode, True
