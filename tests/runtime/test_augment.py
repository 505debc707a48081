"""Crops and flips against the plain way of doing them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.runtime.augment import crop_and_flip

WIDTH = 6


def images(num_images: int) -> torch.Tensor:
    # Every pixel of an image is another number, none of them black.
    one = torch.arange(1, 3 * 5 * WIDTH + 1, dtype=torch.uint8).view(1, 3, 5, WIDTH)
    return one.expand(num_images, -1, -1, -1)


def all_crops(image: torch.Tensor, padding: int) -> list[torch.Tensor]:
    framed = torch.zeros(3, 5 + 2 * padding, WIDTH + 2 * padding, dtype=torch.uint8)
    framed[:, padding : padding + 5, padding : padding + WIDTH] = image
    crops = [
        framed[:, row : row + 5, column : column + WIDTH]
        for row in range(2 * padding + 1)
        for column in range(2 * padding + 1)
    ]
    return [*crops, *(crop.flip(2) for crop in crops)]


@given(st.integers(0, 2**63 - 1), st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_every_result_is_a_crop_or_its_mirror_image(seed: int, padding: int) -> None:
    results = crop_and_flip(images(10), padding, torch.Generator().manual_seed(seed))

    possible = {crop.contiguous().numpy().tobytes() for crop in all_crops(images(1)[0], padding)}
    assert {result.contiguous().numpy().tobytes() for result in results} <= possible


def test_every_crop_and_mirror_image_occurs_equally_often() -> None:
    num_images, padding = 18_000, 1
    results = crop_and_flip(images(num_images), padding, torch.Generator().manual_seed(0))

    possible = all_crops(images(1)[0], padding)
    counts = [(results == crop).flatten(1).all(1).sum().item() for crop in possible]
    assert sum(counts) == num_images
    # 18 outcomes with 1,000 each; 160 is five standard deviations.
    assert all(abs(count - 1000) < 160 for count in counts)


def test_equal_generators_give_equal_results() -> None:
    one, two = (crop_and_flip(images(9), 4, torch.Generator().manual_seed(7)) for _ in range(2))

    assert torch.equal(one, two)
