"""Synthetic data: seeded, with the shape of the real data, and learnable."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from esper.leyline.streams import StreamPurpose, stream_seed
from esper.leyline.tasks import CnnHostSpec, ModuleHostSpec
from esper.runtime.datasets import PixelScale, Split, TensorDataset
from esper.runtime.sources import DataOrigin

__all__ = ["PartSizes", "synthetic_images", "synthetic_text"]

DATA_SEED: Final = 0
"""Fixed, so that the data do not depend on the run's seed, just like real data."""
PATTERN_SIZE: Final = 4
NUM_WORDS: Final = 96
NUM_FOLLOWERS: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSizes:
    """Number of samples in each split."""

    train: int
    val: int
    test: int


def synthetic_images(
    host: CnnHostSpec | ModuleHostSpec, sizes: PartSizes, *, note: str, crop_padding: int = 0
) -> TensorDataset:
    """Generate images for a host: a colour and a smooth pattern per class, plus noise."""
    generator = _generator()
    num_channels, *size = host.sample_shape
    shape = (host.num_classes, num_channels)
    colours = torch.rand(*shape, 1, 1, generator=generator) * 96 + 80
    patterns = torch.rand(*shape, PATTERN_SIZE, PATTERN_SIZE, generator=generator) * 96 - 48
    prototypes = colours + functional.interpolate(patterns, size=size, mode="bilinear")
    return TensorDataset(
        train=_noisy_copies(prototypes, sizes.train, generator),
        val=_noisy_copies(prototypes, sizes.val, generator),
        test=_noisy_copies(prototypes, sizes.test, generator),
        origin=DataOrigin.SYNTHETIC,
        note=note,
        pixel_scale=PixelScale(mean=(128.0,) * num_channels, std=(64.0,) * num_channels),
        crop_padding=crop_padding,
    )


def _noisy_copies(prototypes: Tensor, num_samples: int, generator: torch.Generator) -> Split:
    labels = torch.randint(len(prototypes), (num_samples,), generator=generator)
    brightness = torch.randn(num_samples, 1, 1, 1, generator=generator) * 16
    noise = torch.randn(num_samples, *prototypes.shape[1:], generator=generator).mul_(32)
    # In place, because as floats the images take four times their final memory.
    images = prototypes[labels].add_(brightness).add_(noise)
    return Split(inputs=images.round_().clamp_(0, 255).to(torch.uint8), targets=labels)


def synthetic_text(num_bytes: int) -> bytes:
    """Generate text from a Markov chain: each word is followed by one of a few others."""
    generator = _generator()
    letters = torch.randint(ord("a"), ord("z") + 1, (NUM_WORDS, 8), generator=generator)
    lengths = torch.randint(2, 9, (NUM_WORDS,), generator=generator).tolist()
    words = [bytes(row[:length]) for row, length in zip(letters.tolist(), lengths, strict=True)]
    followers = torch.randint(NUM_WORDS, (NUM_WORDS, NUM_FOLLOWERS), generator=generator).tolist()
    choices = torch.randint(NUM_FOLLOWERS, (num_bytes // 3 + 1,), generator=generator).tolist()
    text = bytearray()
    word = 0
    for choice in choices:
        word = followers[word][choice]
        text += words[word] + b" "
        if len(text) >= num_bytes:
            break
    return bytes(text[:num_bytes])


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(stream_seed(DATA_SEED, purpose=StreamPurpose.SYNTHETIC))
