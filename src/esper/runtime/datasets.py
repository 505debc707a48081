"""In-memory tensors of a task, split into train, validation and test."""

from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from esper.leyline.errors import ContractError
from esper.runtime.sources import DataOrigin

__all__ = ["Part", "PixelScale", "Split", "TensorDataset"]


class Part(StrEnum):
    """The three splits of a data set."""

    TRAIN = "train"
    VAL = "val"
    """Used by gates, rewards and the choice of checkpoints."""
    TEST = "test"
    """Held out: not used by any decision."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Inputs and their targets, row by row."""

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets) or len(self.inputs) == 0:
            raise ContractError(
                f"a split needs equally many inputs and targets, and at least one, "
                f"got {len(self.inputs)} and {len(self.targets)}"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def spread(self, max_rows: int) -> "Split":
        """Return at most `max_rows` evenly spaced rows, deterministically."""
        if len(self) <= max_rows:
            return self
        index = torch.arange(max_rows) * len(self) // max_rows
        return Split(inputs=self.inputs[index], targets=self.targets[index])

    def shrunk(self, image_size: int) -> "Split":
        """Return square uint8 images downscaled to `image_size` by average pooling.

        Raises:
            ContractError: if `image_size` does not divide the images' size.
        """
        height, width = self.inputs.shape[2:]
        factor = height // image_size
        if (height, width) != (factor * image_size,) * 2:
            raise ContractError(f"images of {height} x {width} cannot be shrunk to {image_size}")
        if factor == 1:
            return self
        corners = [(row, column) for row in range(factor) for column in range(factor)]
        # Adding strided views, one per pixel of a pooling window, takes a fifth of the time of a
        # reshape and sum.
        sums = self.inputs[:, :, ::factor, ::factor].int()
        for row, column in corners[1:]:
            sums += self.inputs[:, :, row::factor, column::factor]
        rounded = sums.add_(len(corners) // 2).div_(len(corners), rounding_mode="floor")
        return Split(inputs=rounded.to(torch.uint8), targets=self.targets)


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelScale:
    """Mean and standard deviation of each channel, in the units of the stored pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorDataset:
    """A data set in memory.

    Pixels and tokens are stored as uint8, and converted when a batch is made.
    """

    train: Split
    val: Split
    test: Split
    origin: DataOrigin = DataOrigin.FILES
    note: str | None = None
    """A sentence for the user about these data, such as why they are synthetic."""
    pixel_scale: PixelScale | None = None
    """Normalisation of stored pixels; None leaves inputs unscaled."""
    crop_padding: int = 0
    """Zero padding for random crops in training; 0 disables augmentation."""

    def part(self, part: Part) -> Split:
        """Return one of the splits."""
        return {Part.TRAIN: self.train, Part.VAL: self.val, Part.TEST: self.test}[part]

    def with_held_out(self, max_rows: int) -> "TensorDataset":
        """Return the data set with at most `max_rows` validation and test rows each."""
        return replace(self, val=self.val.spread(max_rows), test=self.test.spread(max_rows))

    def with_images_of(self, image_size: int) -> "TensorDataset":
        """Return the data set with its images downscaled to `image_size`."""
        train, val, test = (part.shrunk(image_size) for part in (self.train, self.val, self.test))
        return replace(self, train=train, val=val, test=test)
