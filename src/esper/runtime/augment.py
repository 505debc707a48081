"""Random crops and flips of images, with an explicit generator."""

import torch
from torch import Generator, Tensor
from torch.nn import functional

__all__ = ["crop_and_flip"]


def crop_and_flip(images: Tensor, padding: int, generator: Generator) -> Tensor:
    """Pad each image with zeros, crop it at random to its size, and flip half of them.

    Images are stored pixels, before they are scaled, so that 0 is black. Random numbers are drawn
    on the CPU, so that they are the same for every device. The result owns its storage.
    """
    num_images, num_channels, height, width = images.shape
    device = images.device
    # All draws of a batch in two calls, in a fixed order: results do not depend on the image's
    # size.
    draws = torch.randint(2 * padding + 1, (2, num_images, 1), generator=generator)
    is_mirrored = torch.rand(num_images, 1, generator=generator) < 0.5
    top, left = draws.to(device, non_blocking=True)
    across = torch.arange(width, device=device)
    mirrored = torch.where(is_mirrored.to(device, non_blocking=True), across.flip(0), across)
    rows, columns = top + torch.arange(height, device=device), left + mirrored
    # One gather over flattened pixels is several times as fast as indexing rows, then columns.
    positions = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]
    index = positions.view(num_images, 1, -1).expand(-1, num_channels, -1)
    framed = functional.pad(images, (padding,) * 4).flatten(2)
    return framed.gather(2, index).view_as(images)
