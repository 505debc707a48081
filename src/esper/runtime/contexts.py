"""Data in contexts: what a context changes of a data set, and batches in which envs differ."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, overload

import torch
from torch import Generator, Tensor

from esper.leyline.contexts import ContextSpec
from esper.leyline.errors import ContractError
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.runtime.batches import Batch, SharedBatchIterator
from esper.runtime.datasets import Part, PixelScale, Split, TensorDataset

__all__ = ["BatchSource", "ContextBatches", "transformed"]

TRANSFORM_SEED: Final = 0
"""The order of permuted pixels and the wrong labels belong to the task, whatever the run's seed."""


class BatchSource(Protocol):
    """Provides the batches of a pass, each with one share per env."""

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        ...

    def batches(self, *, round: int, step: int) -> Iterator[Sequence[Batch]]:
        """Iterate over one pass."""
        ...


@dataclass(eq=False, kw_only=True, slots=True)
class ContextBatches:
    """Gives each env the batches of its context's data; the order of rows is the same in all."""

    sources: Mapping[str, SharedBatchIterator]
    """By the context's name."""
    context_of: Callable[[int, int], str]
    """Maps round and env to the name of a context."""
    num_envs: int
    env_ids: Sequence[int]
    """The envs that are served."""

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return len(next(iter(self.sources.values())))

    def batches(self, *, round: int, step: int) -> Iterator[Sequence[Batch]]:
        """Iterate over one pass; yield one `Batch` per env, which must not be modified."""
        names = {env_id: self.context_of(round, env_id) for env_id in self.env_ids}
        # Only the contexts of this round: the others' batches would be made for nobody.
        drawn = tuple(dict.fromkeys(names.values()))
        passes = (self.sources[name].batches(round=round, step=step) for name in drawn)
        places = {env_id: drawn.index(name) for env_id, name in names.items()}
        for shares in zip(*passes, strict=True):
            yield _SharesByContext(shares, places, self.num_envs)


class _SharesByContext(Sequence[Batch]):
    """The envs' shares of one batch, each from its context's."""

    __slots__ = ("_num_envs", "_places", "_shares")

    def __init__(
        self, shares: Sequence[Sequence[Batch]], places: Mapping[int, int], num_envs: int
    ) -> None:
        self._shares = shares
        self._places = places
        self._num_envs = num_envs

    def __len__(self) -> int:
        """Return the number of envs."""
        return self._num_envs

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Batch]: ...

    def __getitem__(self, index: int | slice) -> Batch | Sequence[Batch]:
        """Return the share of an env."""
        if isinstance(index, slice):
            return [self[env_id] for env_id in range(*index.indices(len(self)))]
        return self._shares[self._places[index]][index]


def transformed(dataset: TensorDataset, context: ContextSpec, num_classes: int) -> TensorDataset:
    """Return the data set as a context shows it; every split is changed alike."""
    if not context.changes_data:
        return dataset
    train, val, test = (_transformed_split(dataset, part, context, num_classes) for part in Part)
    scale = dataset.pixel_scale
    if scale is not None:
        # (x - mean) / (std / factor): the scale of normalised inputs costs nothing.
        std = tuple(value / context.input_scale for value in scale.std)
        scale = PixelScale(mean=scale.mean, std=std)
    return replace(dataset, train=train, val=val, test=test, pixel_scale=scale)


def _transformed_split(
    dataset: TensorDataset, part: Part, context: ContextSpec, num_classes: int
) -> Split:
    split = dataset.part(part)
    inputs, targets = split.inputs, split.targets
    if context.is_permuted:
        inputs = _permuted(inputs)
    if context.label_noise > 0.0:
        targets = _mislabelled(targets, context.label_noise, num_classes, part)
    if context.input_scale != 1.0 and dataset.pixel_scale is None:
        if not inputs.is_floating_point():
            raise ContractError(f"context {context.name!r}: tokens cannot be scaled")
        inputs = inputs * context.input_scale
    return Split(inputs=inputs, targets=targets)


def _permuted(images: Tensor) -> Tensor:
    """Return images whose pixels are all in the same random order, channels together."""
    flat = images.flatten(2)
    order = torch.randperm(flat.shape[2], generator=_generator("pixels"))
    return flat[:, :, order].view_as(images)


def _mislabelled(targets: Tensor, share: float, num_classes: int, part: Part) -> Tensor:
    """Return labels of which a share has been replaced by another class each."""
    generator = _generator(part.value)
    num_wrong = round(share * len(targets))
    rows = torch.randperm(len(targets), generator=generator)[:num_wrong]
    shift = torch.randint(1, num_classes, (num_wrong,), generator=generator)
    wrong = targets.clone()
    wrong[rows] = ((targets[rows].long() + shift) % num_classes).to(targets.dtype)
    return wrong


_STEPS: Final = {"pixels": 0} | {part.value: index for index, part in enumerate(Part, start=1)}


def _generator(what: str) -> Generator:
    source = stream_seed(TRANSFORM_SEED, purpose=StreamPurpose.CONTEXT, step=_STEPS[what])
    return Generator().manual_seed(source)
