"""The CNN host: convolution blocks that double the channels, with max pooling between them."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from esper.kasmina.hosts.segmented import SegmentedHost, require
from esper.kasmina.layers import Conv2d, Linear
from esper.leyline.actions import Topology
from esper.leyline.slots import InjectionSpec, Surface, format_slot_id
from esper.leyline.tasks import CnnHostSpec

__all__ = ["CnnHost"]

POOL_SIZE = 2


class CnnHost(SegmentedHost):
    """Convolution blocks with a slot after each block (row 0) and after each pool (row 1)."""

    def __init__(self, spec: CnnHostSpec) -> None:
        _check(spec)
        channels = block_channels(spec)
        super().__init__(_injection_specs(spec), dict(_stages(spec)))
        self.head = Linear(channels[-1], spec.num_classes)

    @property
    def topology(self) -> Topology:
        """Return the host's topology."""
        return Topology.CNN

    def _enter(self, x: Tensor) -> Tensor:
        # In this layout a 1x1 convolution reads the channels of a pixel without a copy; it is set
        # once here, and the layers keep it.
        return x.contiguous(memory_format=torch.channels_last)

    def _exit(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


class ConvBlock(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = Conv2d(in_channels, out_channels, kernel_size)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in, height, width) to (batch, out, height, width)."""
        return torch.relu_(self.norm(self.conv(x)))


def block_channels(spec: CnnHostSpec) -> tuple[int, ...]:
    """Return the output channels of each block."""
    return tuple(spec.base_channels << index for index in range(spec.num_blocks))


def _stages(spec: CnnHostSpec) -> Iterator[tuple[str, nn.Module]]:
    in_channels = spec.in_channels
    for index, channels in enumerate(block_channels(spec)):
        yield format_slot_id(0, index), ConvBlock(in_channels, channels, spec.kernel_size)
        if index < spec.pools:
            yield format_slot_id(1, index), nn.MaxPool2d(POOL_SIZE)
        in_channels = channels


def _injection_specs(spec: CnnHostSpec) -> Iterator[InjectionSpec]:
    channels = block_channels(spec)
    rows = ((Surface.PRE_POOL, spec.num_blocks), (Surface.POST_POOL, spec.pools))
    for row, (surface, num_columns) in enumerate(rows):
        for column in range(num_columns):
            yield InjectionSpec(
                slot_id=format_slot_id(row, column),
                channels=channels[column],
                # Rows first: action order is fixed by position in the grid, not by the order of
                # execution.
                order=row * spec.num_blocks + column,
                surface=surface,
                layer_range=(column, column + 1),
                position=(2 * column + 1 + row) / (2 * spec.num_blocks),
            )


def _check(spec: CnnHostSpec) -> None:
    blocks, pools, pixels = spec.num_blocks, spec.pools, spec.image_size
    require(spec.base_channels >= 1, "base_channels", spec.base_channels, "must be positive")
    require(blocks >= 2, "num_blocks", blocks, "must be at least 2")
    require(spec.kernel_size % 2 == 1, "kernel_size", spec.kernel_size, "must be odd")
    require(0 <= pools <= blocks, "num_pools", pools, f"must be from 0 to the {blocks} blocks")
    require(pixels >= POOL_SIZE**pools, "num_pools", pools, f"is too many for {pixels} pixels")
