"""Tensors of a task: images at another size."""

import pytest
import torch

from esper.leyline.errors import ContractError
from esper.runtime.datasets import Split


def images(size: int) -> Split:
    pixels = torch.randint(256, (5, 3, size, size), generator=torch.Generator().manual_seed(0))
    return Split(inputs=pixels.to(torch.uint8), targets=torch.arange(5))


@pytest.mark.parametrize(("size", "wanted"), [(12, 4), (8, 4), (6, 1)])
def test_a_shrunk_pixel_is_the_rounded_mean_of_its_square(size: int, wanted: int) -> None:
    whole, factor = images(size), size // wanted
    means = torch.nn.functional.avg_pool2d(whole.inputs.double(), factor)

    shrunk = whole.shrunk(wanted)

    assert torch.equal(shrunk.inputs, (means + 0.5).floor().to(torch.uint8))
    assert torch.equal(shrunk.targets, whole.targets)


def test_images_of_the_right_size_stay_as_they_are() -> None:
    whole = images(8)
    assert whole.shrunk(8) is whole


@pytest.mark.parametrize("wanted", [3, 16])
def test_a_size_that_does_not_divide_theirs_is_refused(wanted: int) -> None:
    with pytest.raises(ContractError, match=f"images of 8 x 8 cannot be shrunk to {wanted}"):
        images(8).shrunk(wanted)
