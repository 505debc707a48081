"""A grown network as a program of torch.export: operations and weights, without Esper's classes."""

from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from esper.leyline.errors import UnreadableFileError, UsageError
from esper.simic.training.checkpoints.grown import GrownHeader

__all__ = ["INPUT", "OUTPUT", "export_program"]

INPUT: Final = "x"
OUTPUT: Final = "logits"
SAMPLE_SIZE: Final = 2
"""Batches of one are special to torch.export: it would fix the size."""


def export_program(network: nn.Module, header: GrownHeader, path: Path) -> ExportedProgram:
    """Trace a network in evaluation mode, for batches of any size.

    Args:
        network: the network, in evaluation mode.
        header: its file's header, which says what inputs look like.
        path: the file, for error messages.
    """
    sample = _sample(header, path)
    batch: dict[int, Any] = {0: Dim("batch")}
    try:
        with torch.no_grad():
            network(sample)  # slots build a tensor at their first use, which a trace would lose
            return torch.export.export(network, (sample,), dynamic_shapes=(batch,))
    except Exception as error:  # a host may be code of the user's own
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"{path}: torch.export cannot trace this network: {reason}") from error


def _sample(header: GrownHeader, path: Path) -> Tensor:
    if header.input_shape is None:
        raise UnreadableFileError(
            path, "was written before the shape of inputs was recorded; write it again"
        )
    dtype = torch.int64 if header.takes_tokens else torch.float32
    return torch.zeros(SAMPLE_SIZE, *header.input_shape, dtype=dtype)
