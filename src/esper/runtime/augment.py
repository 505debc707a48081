"""Random crops and flips of images, drawn from a generator of one's own."""

import torch
from torch import Generator, Tensor
from torch.nn import functional

__all__ = ["crop_and_flip"]


def crop_and_flip(images: Tensor, padding: int, generator: Generator) -> Tensor:
    """Crop each image out of a black frame of `padding` pixels, and mirror every other one.

    Images are stored pixels, before they are scaled: black is 0. The draws are made on the CPU, so
    that they are the same on every device. The result owns its storage.
    """
    num_images, num_channels, height, width = images.shape
    draws = torch.randint(2 * padding + 1, (2, num_images, 1), generator=generator)
    is_mirrored = torch.rand(num_images, 1, generator=generator) < 0.5
    rows = draws[0] + torch.arange(height)
    columns = draws[1] + torch.where(is_mirrored, torch.arange(width).flip(0), torch.arange(width))
    framed = functional.pad(images, (padding,) * 4)
    device = images.device
    index = torch.arange(num_images, device=device)[:, None, None, None]
    channel = torch.arange(num_channels, device=device)[None, :, None, None]
    row = rows.to(device, non_blocking=True)[:, None, :, None]
    column = columns.to(device, non_blocking=True)[:, None, None, :]
    return framed[index, channel, row, column]
