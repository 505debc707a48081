"""Tasks that cost next to nothing: one with augmentation, one with dropout; and their parts."""

from collections.abc import Callable
from typing import Any, Final

import torch

from esper.leyline.contexts import ContextSpec
from esper.leyline.tasks import (
    BatchMode,
    CnnHostSpec,
    HostSpec,
    TaskKind,
    TaskSpec,
    TransformerHostSpec,
)
from esper.runtime.datasets import Split, TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import all_tasks, register_task

TINY: Final = "tiny"
"""Crops and flips at random."""
TINY_FAMILY: Final = "tiny_family"
"""Has contexts, one of them only on request."""
TINY_LM: Final = "tiny_lm"
"""Has dropout."""

NUM_CLASSES: Final = 3
NUM_TOKENS: Final = 16
BLOCK_SIZE: Final = 8
IMAGE_SIZES: Final = {"train": 48, "val": 24, "test": 30}
FAMILY: Final = (
    ContextSpec(name="plain"),
    ContextSpec(name="wide", base_channels=3, kernel_size=1, sterile_share=0.5),
    ContextSpec(name="odd", is_permuted=True, label_noise=0.25, input_scale=0.5, sterile_share=1.0),
    ContextSpec(name="held_out", weight=0.0, base_channels=5),
)
TEXT_SIZES: Final = {"train": 48, "val": 16, "test": 20}


def image_split(num_rows: int, seed: int) -> Split:
    """Return noise whose mean is its class."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(NUM_CLASSES, (num_rows,), generator=generator)
    noise = torch.randn(num_rows, 1, 8, 8, generator=generator)
    return Split(inputs=noise + targets.view(-1, 1, 1, 1), targets=targets)


def text_split(num_rows: int, seed: int) -> Split:
    """Return random tokens, each row with the next token of every place as its target."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(NUM_TOKENS, (num_rows, BLOCK_SIZE + 1), generator=generator)
    return Split(inputs=text[:, :-1].contiguous(), targets=text[:, 1:].contiguous())


def _load_images(_: TaskSpec, __: DataRequest) -> TensorDataset:
    return TensorDataset(**_parts(image_split, IMAGE_SIZES), crop_padding=1)


def _load_text(_: TaskSpec, __: DataRequest) -> TensorDataset:
    return TensorDataset(**_parts(text_split, TEXT_SIZES))


def _parts(split: Callable[[int, int], Split], sizes: dict[str, int]) -> dict[str, Split]:
    return {name: split(size, seed) for seed, (name, size) in enumerate(sizes.items(), 1)}


def tiny_task(name: str, kind: TaskKind, host: HostSpec, **changes: Any) -> TaskSpec:
    """Return a task whose data set has its name, with a small policy by default."""
    facts: dict[str, Any] = {
        "name": name,
        "summary": "a task that costs next to nothing",
        "kind": kind,
        "dataset": name,
        "host": host,
        "batch_size": 12,
        "batch_mode": BatchMode.BROADCAST,
        "baseline_loss": 1.1,
        "target_loss": 0.1,
        "loss_delta_std": 0.05,
        "defaults": {
            "slots": host.slot_ids[:2],
            "n_episodes": 3,
            "n_envs": 2,
            "max_epochs": 3,
            "lstm_hidden_dim": 8,
            "feature_dim": 8,
        },
    }
    return TaskSpec(**{**facts, **changes})


def register_tiny_tasks() -> None:
    """Make the tasks known, once per process."""
    if TINY in all_tasks():
        return
    images = CnnHostSpec(
        in_channels=1, image_size=8, num_classes=NUM_CLASSES, base_channels=2, num_blocks=2
    )
    text = TransformerHostSpec(
        block_size=BLOCK_SIZE,
        num_layers=2,
        num_heads=2,
        embed_dim=8,
        num_segments=2,
        dropout=0.2,
        vocab_size=NUM_TOKENS,
    )
    register_task(tiny_task(TINY, TaskKind.CLASSIFICATION, images), load=_load_images)
    register_task(
        tiny_task(TINY_FAMILY, TaskKind.CLASSIFICATION, images, contexts=FAMILY), load=_load_images
    )
    register_task(tiny_task(TINY_LM, TaskKind.LANGUAGE_MODEL, text), load=_load_text)
