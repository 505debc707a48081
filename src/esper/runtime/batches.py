"""The iterator that provides the batches of all envs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Generator, Tensor

from esper.leyline.config import TrainingConfig
from esper.leyline.errors import InvalidValueError
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.leyline.tasks import BatchMode, TaskSpec
from esper.runtime.augment import crop_and_flip
from esper.runtime.datasets import Part, Split, TensorDataset
from esper.runtime.sources import CancelCheck, never_cancelled

__all__ = ["Batch", "SharedBatchIterator", "Transfer", "batch_size_for", "is_augmented"]

MIN_TRAIN_BATCHES: Final = 8
"""Minimum number of batches per pass, unless a batch size was requested."""
PRELOAD_CHUNK_BYTES: Final = 16 << 20
MAX_KEPT_BYTES: Final = 64 << 20
"""Validation and test batches, which never change, are cached up to this size."""

Transfer: TypeAlias = Callable[[Tensor, torch.device], Tensor]
"""Copies a tensor to a device; on CUDA through a fence, from pinned memory, asynchronously."""


class Batch(NamedTuple):
    """One env's share of a batch."""

    inputs: Tensor
    targets: Tensor


def batch_size_for(task: TaskSpec, config: TrainingConfig, num_train: int) -> int:
    """Return the samples per env and batch: the configured number, otherwise the task's default.

    The default is reduced where many envs share a small data set, so that a pass has at least
    MIN_TRAIN_BATCHES batches. Preloading does not affect it.
    """
    if config.batch_size_per_env is not None:
        return config.batch_size_per_env
    mode = config.batch_mode or task.batch_mode
    num_shares = config.n_envs if mode is BatchMode.SPLIT else 1
    return max(1, min(task.batch_size, num_train // (num_shares * MIN_TRAIN_BATCHES)))


def is_augmented(dataset: TensorDataset, config: TrainingConfig) -> bool:
    """Return whether training batches are augmented; preloaded ones only if so configured."""
    return dataset.crop_padding > 0 and (not config.gpu_preload or config.gpu_preload_augment)


def move_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device synchronously."""
    return tensor.to(device)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    """A pixel scale on a device, as a fused multiply-add."""

    factor: Tensor
    offset: Tensor

    def apply(self, pixels: Tensor) -> Tensor:
        return torch.addcmul(self.offset, pixels.float(), self.factor)


class SharedBatchIterator:
    """Divides one split of a data set into batches, and each batch among the envs.

    Training shuffles in each pass and drops the last incomplete batch. In `broadcast` mode every
    env gets the whole batch; in `split` mode the batch is divided among the envs, and each share
    owns its storage. Validation and test data go to every env in stored order, the last incomplete
    batch included. A pass depends only on the seed, round and step: it can be iterated at any time,
    repeatedly, and by another process, with the same result.

    Envs are assigned to `devices` round-robin, and `preload` copies the data to each device.
    `max_batches` ends a training pass early; the next pass shuffles anew.
    """

    def __init__(
        self,
        dataset: TensorDataset,
        *,
        n_envs: int,
        batch_size_per_env: int,
        seed: int,
        part: Part = Part.TRAIN,
        mode: BatchMode = BatchMode.BROADCAST,
        devices: Sequence[torch.device] = (torch.device("cpu"),),
        max_batches: int | None = None,
        augment: bool = False,
        preload: bool = False,
        transfer: Transfer = move_tensor,
        check_cancelled: CancelCheck = never_cancelled,
    ) -> None:
        self._is_training = part is Part.TRAIN
        self._split = dataset.part(part)
        self._n_envs = n_envs
        self._batch_size = batch_size_per_env
        self._seed = seed
        self._mode = mode if self._is_training else BatchMode.BROADCAST
        self._devices = [devices[env_id % len(devices)] for env_id in range(n_envs)]
        self._crop_padding = dataset.crop_padding if augment and self._is_training else 0
        self._transfer = transfer
        self._num_batches = self._count_batches(max_batches)
        distinct = dict.fromkeys(self._devices)
        self._scales = {device: _scale_on(device, dataset) for device in distinct}
        self._stores = dict.fromkeys(distinct, self._split)
        if preload:
            self._stores = {
                device: _preloaded(self._split, device, transfer, check_cancelled)
                for device in distinct
            }
        is_kept = not self._is_training and self._num_pass_bytes() <= MAX_KEPT_BYTES
        self._kept = tuple(self._walk(0, 0)) if is_kept else None

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return self._num_batches

    def batches(self, *, round: int, step: int) -> Iterator[list[Batch]]:
        """Iterate over one pass; yield one `Batch` per env, which must not be modified."""
        return self._walk(round, step) if self._kept is None else iter(self._kept)

    def _walk(self, round: int, step: int) -> Iterator[list[Batch]]:
        orders = self._orders(round, step)
        generators = self._augmentation_generators(round, step)
        num_taken = self._batch_size * self._num_shares
        for start in range(0, self._num_batches * num_taken, num_taken):
            if self._mode is BatchMode.SPLIT:
                yield self._shares(orders, start, generators)
            else:
                yield self._copies(orders, start, generators)

    def _num_pass_bytes(self) -> int:
        inputs = self._split.inputs
        is_scaled = any(scale is not None for scale in self._scales.values())
        value_bytes = torch.float.itemsize if is_scaled else torch.long.itemsize
        return inputs.numel() * max(value_bytes, inputs.element_size())

    @property
    def _num_shares(self) -> int:
        return self._n_envs if self._mode is BatchMode.SPLIT else 1

    def _count_batches(self, max_batches: int | None) -> int:
        num_rows, num_taken = len(self._split), self._batch_size * self._num_shares
        if not self._is_training:
            return -(-num_rows // num_taken)
        if num_rows < num_taken:
            constraint = (
                f"{num_rows} training samples do not fill one batch of {num_taken}; "
                f"use a smaller batch size or fewer envs"
            )
            raise InvalidValueError("training.batch_size_per_env", self._batch_size, constraint)
        num_batches = num_rows // num_taken
        return num_batches if max_batches is None else min(num_batches, max_batches)

    def _orders(self, round: int, step: int) -> dict[torch.device, Tensor]:
        """Return the row indices of a pass in order, on the device of each copy of the data."""
        num_rows = len(self._split)
        if self._is_training:
            seed = stream_seed(self._seed, purpose=StreamPurpose.DATA_ORDER, round=round, step=step)
            order = torch.randperm(num_rows, generator=Generator().manual_seed(seed))
        else:
            order = torch.arange(num_rows)
        return {
            device: order if store.inputs.device == order.device else self._transfer(order, device)
            for device, store in self._stores.items()
        }

    def _augmentation_generators(self, round: int, step: int) -> list[Generator | None]:
        if not self._crop_padding:
            return [None] * self._n_envs
        purpose = StreamPurpose.AUGMENTATION
        return [
            Generator().manual_seed(
                stream_seed(self._seed, purpose=purpose, round=round, env=env_id, step=step)
            )
            for env_id in range(self._n_envs)
        ]

    def _shares(
        self,
        orders: Mapping[torch.device, Tensor],
        start: int,
        generators: Sequence[Generator | None],
    ) -> list[Batch]:
        size = self._batch_size
        return [
            self._finished(
                self._taken(device, orders[device][start + env_id * size :][:size]),
                device,
                generators[env_id],
            )
            for env_id, device in enumerate(self._devices)
        ]

    def _copies(
        self,
        orders: Mapping[torch.device, Tensor],
        start: int,
        generators: Sequence[Generator | None],
    ) -> list[Batch]:
        taken = {
            device: self._taken(device, order[start : start + self._batch_size])
            for device, order in orders.items()
        }
        if not self._crop_padding:
            # Batches are never modified, so the envs on one device can share a tensor.
            whole = {device: self._finished(raw, device, None) for device, raw in taken.items()}
            return [whole[device] for device in self._devices]
        return [
            self._finished(taken[device], device, generators[env_id])
            for env_id, device in enumerate(self._devices)
        ]

    def _taken(self, device: torch.device, rows: Tensor) -> Batch:
        """Copy rows from the data stored for this device."""
        store = self._stores[device]
        return Batch(store.inputs.index_select(0, rows), store.targets.index_select(0, rows))

    def _finished(self, raw: Batch, device: torch.device, generator: Generator | None) -> Batch:
        """Augment, transfer to the device, and convert bytes to the host's input dtype."""
        inputs, targets = raw
        if generator is not None:
            inputs = crop_and_flip(inputs, self._crop_padding, generator)
        if inputs.device != device:
            inputs, targets = self._transfer(inputs, device), self._transfer(targets, device)
        scale = self._scales[device]
        if scale is not None:
            inputs = scale.apply(inputs)
        elif not inputs.is_floating_point():
            inputs = inputs.long()
        return Batch(inputs, targets.long())


def _scale_on(device: torch.device, dataset: TensorDataset) -> _Scale | None:
    if dataset.pixel_scale is None:
        return None
    mean = torch.tensor(dataset.pixel_scale.mean)[:, None, None]
    std = torch.tensor(dataset.pixel_scale.std)[:, None, None]
    return _Scale(factor=(1 / std).to(device), offset=(-mean / std).to(device))


def _preloaded(
    split: Split, device: torch.device, transfer: Transfer, check_cancelled: CancelCheck
) -> Split:
    return Split(
        inputs=_resident(split.inputs, device, transfer, check_cancelled),
        targets=_resident(split.targets, device, transfer, check_cancelled),
    )


def _resident(
    tensor: Tensor, device: torch.device, transfer: Transfer, check_cancelled: CancelCheck
) -> Tensor:
    """Copy a tensor to a device in chunks, checking for cancellation before each."""
    resident = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    row_bytes = max(1, tensor[0].numel() * tensor.element_size())
    num_rows = max(1, PRELOAD_CHUNK_BYTES // row_bytes)
    for start in range(0, len(tensor), num_rows):
        check_cancelled()
        piece = transfer(tensor[start : start + num_rows], device)
        resident[start : start + num_rows].copy_(piece, non_blocking=True)
    return resident
