"""Synthetic data: reproducible and learnable."""

import pytest
import torch
from torch.nn import functional

from esper.leyline.tasks import TASKS, CnnHostSpec
from esper.runtime.datasets import TensorDataset
from esper.runtime.synthetic import PartSizes, synthetic_images, synthetic_text

SIZES = PartSizes(train=300, val=100, test=200)
image_tasks = pytest.mark.parametrize("task", ["digits", "fashion_mnist", "cifar_baseline"])


def images_for(task: str) -> TensorDataset:
    host = TASKS[task].host
    assert isinstance(host, CnnHostSpec)
    return synthetic_images(host, SIZES, note="a note")


@image_tasks
def test_images_are_the_same_every_time(task: str) -> None:
    first, second = images_for(task), images_for(task)

    assert torch.equal(first.train.inputs, second.train.inputs)
    assert torch.equal(first.test.targets, second.test.targets)


@image_tasks
def test_nearest_class_mean_separates_images(task: str) -> None:
    data = images_for(task)
    pixels, labels = data.train.inputs.flatten(1).float(), data.train.targets
    means = torch.stack([pixels[labels == label].mean(0) for label in range(10)])

    guesses = torch.cdist(data.test.inputs.flatten(1).float(), means).argmin(1)

    assert (guesses == data.test.targets).float().mean() > 0.7


@image_tasks
def test_colour_alone_separates_images_better_than_chance(task: str) -> None:
    # The smallest hosts see nothing but single pixels.
    data = images_for(task)
    colours, labels = data.train.inputs.float().mean((2, 3)), data.train.targets
    means = torch.stack([colours[labels == label].mean(0) for label in range(10)])

    guesses = torch.cdist(data.test.inputs.float().mean((2, 3)), means).argmin(1)

    assert (guesses == data.test.targets).float().mean() > 0.13


def test_images_use_the_range_of_bytes_without_sticking_to_its_ends() -> None:
    pixels = images_for("cifar_baseline").train.inputs

    assert ((pixels == 0) | (pixels == 255)).float().mean() < 0.02
    assert pixels.float().std() > 30


def test_text_has_its_length_and_is_the_same_every_time() -> None:
    assert len(synthetic_text(1234)) == 1234
    assert synthetic_text(5000)[:1000] == synthetic_text(5000)[:1000]


def test_text_can_be_predicted_from_the_byte_before_better_than_from_frequencies() -> None:
    tokens = torch.tensor(list(synthetic_text(60_000)))
    pairs = torch.zeros(256, 256).index_put_((tokens[:-1], tokens[1:]), torch.ones(1), True) + 1e-3
    conditional = functional.normalize(pairs, p=1, dim=1)[tokens[:-1], tokens[1:]].log()
    alone = (pairs.sum(0) / pairs.sum())[tokens[1:]].log()

    assert -conditional.mean() < -alone.mean() - 0.3
