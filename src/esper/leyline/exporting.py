"""The formats of exported networks, and what an export reports."""

from enum import StrEnum

import msgspec

__all__ = ["ExportFormat", "ExportReport"]


class ExportFormat(StrEnum):
    """What `esper-train export` writes."""

    SAFETENSORS = "safetensors"
    TORCH_EXPORT = "torch-export"
    ONNX = "onnx"


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was exported, and what the network takes."""

    path: str
    format: ExportFormat
    task: str
    num_bytes: int
    num_params: int
    input_shape: tuple[int, ...]
    """Of one input, without the batch."""
    input_dtype: str
    pixel_mean: tuple[float, ...] | None
    """Of the pixels that the network takes, which it standardizes itself; None for other inputs."""
    pixel_std: tuple[float, ...] | None
