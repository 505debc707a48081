"""The iterator that provides the batches of all envs."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias, overload

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


class _Shares(Sequence[Batch]):
    """The envs' shares of one batch, each made when it is first used.

    Two threads may make the same share at once; the two are equal, and one of them remains.
    """

    __slots__ = ("_keys", "_made", "_make")

    def __init__(self, make: Callable[[int], Batch], keys: Sequence[Hashable]) -> None:
        """Prepare the shares.

        Args:
            make: makes the share of an env.
            keys: one per env; envs with equal keys have the same share.
        """
        self._make = make
        self._keys = keys
        self._made: dict[Hashable, Batch] = {}

    def __len__(self) -> int:
        """Return the number of envs."""
        return len(self._keys)

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Batch]: ...

    def __getitem__(self, index: int | slice) -> Batch | Sequence[Batch]:
        """Return the share of an env."""
        if isinstance(index, slice):
            return [self[env_id] for env_id in range(*index.indices(len(self)))]
        key = self._keys[index]
        if key not in self._made:
            self._made[key] = self._make(index)
        return self._made[key]


class SharedBatchIterator:
    """Divides one split of a data set into batches, and each batch among the envs.

    Training shuffles in each pass and drops the last incomplete batch. In `broadcast` mode every
    env gets the whole batch; in `split` mode the batch is divided among the envs, and each share
    owns its storage. Validation and test data go to every env in stored order, the last incomplete
    batch included. A pass depends only on the seed, round and step: it can be iterated at any time,
    repeatedly, and by another process, with the same result.

    Envs are assigned to `devices` round-robin, and `preload` copies the data to each device.
    `max_batches` ends a training pass early; the next pass shuffles anew. `env_ids` names the envs
    that are served, if not all are: no other training shares are made, and no other device gets
    data. Held-out shares are made by the thread that uses them, for the devices that need them.
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
        env_ids: Sequence[int] | None = None,
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
        # Every env is judged on the same held-out samples, whatever the number of envs.
        self._mode = mode if self._is_training else BatchMode.BROADCAST
        self._devices = [devices[env_id % len(devices)] for env_id in range(n_envs)]
        self._crop_padding = dataset.crop_padding if augment and self._is_training else 0
        self._transfer = transfer
        self._num_batches = self._count_batches(max_batches)
        self._env_ids = tuple(range(n_envs)) if env_ids is None else tuple(env_ids)
        distinct = dict.fromkeys(self._devices[env_id] for env_id in self._env_ids)
        self._scales = {device: _scale_on(device, dataset) for device in distinct}
        self._stores = dict.fromkeys(distinct, self._split)
        if preload:
            self._stores = {
                device: _preloaded(self._split, device, transfer, check_cancelled)
                for device in distinct
            }
        # Held-out batches are the same in every pass, so they are cut and scaled once, if memory
        # allows.
        is_kept = not self._is_training and self._num_pass_bytes() <= MAX_KEPT_BYTES
        self._kept = tuple(self._walk(0, 0)) if is_kept else None

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return self._num_batches

    def batches(self, *, round: int, step: int) -> Iterator[Sequence[Batch]]:
        """Iterate over one pass; yield one `Batch` per env, which must not be modified."""
        return self._walk(round, step) if self._kept is None else iter(self._kept)

    def _walk(self, round: int, step: int) -> Iterator[Sequence[Batch]]:
        order = _OrderOnDevices(self._order(round, step), self._transfer)
        generators = self._augmentation_generators(round, step)
        # Envs on one device share a batch, unless each has rows or random crops of its own.
        keys: Sequence[Hashable] = self._devices
        if self._mode is BatchMode.SPLIT or generators:
            keys = range(self._n_envs)
        num_taken = self._batch_size * self._num_shares
        for start in range(0, self._num_batches * num_taken, num_taken):
            shares = _Shares(partial(self._share, order, start, generators), keys)
            if self._is_training:
                # Made now, on the feeder's thread: lanes must find training shares ready. Held-out
                # shares are made by the lane that uses them.
                for env_id in self._env_ids:
                    shares[env_id]
            yield shares

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
            # Rounded up: held-out data are used completely, the last incomplete batch included.
            return -(-num_rows // num_taken)
        if num_rows < num_taken:
            constraint = (
                f"{num_rows} training samples do not fill one batch of {num_taken}; "
                f"use a smaller batch size or fewer envs"
            )
            raise InvalidValueError("training.batch_size_per_env", self._batch_size, constraint)
        num_batches = num_rows // num_taken
        return num_batches if max_batches is None else min(num_batches, max_batches)

    def _order(self, round: int, step: int) -> Tensor:
        """Return the row indices of a pass in order."""
        num_rows = len(self._split)
        if not self._is_training:
            return torch.arange(num_rows)
        seed = stream_seed(self._seed, purpose=StreamPurpose.DATA_ORDER, round=round, step=step)
        # A generator per pass: any pass can be repeated, by a resumed run or another process,
        # without those before it.
        return torch.randperm(num_rows, generator=Generator().manual_seed(seed))

    def _augmentation_generators(self, round: int, step: int) -> dict[int, Generator]:
        """Return a generator for each env that is served; none without augmentation."""
        if not self._crop_padding:
            return {}
        purpose = StreamPurpose.AUGMENTATION
        return {
            env_id: Generator().manual_seed(
                stream_seed(self._seed, purpose=purpose, round=round, env=env_id, step=step)
            )
            for env_id in self._env_ids
        }

    def _share(
        self,
        order: "_OrderOnDevices",
        start: int,
        generators: Mapping[int, Generator],
        env_id: int,
    ) -> Batch:
        """Make an env's share of the batch that starts at this row."""
        device = self._devices[env_id]
        store = self._stores[device]
        begin = start + (env_id * self._batch_size if self._mode is BatchMode.SPLIT else 0)
        rows = order.on(store.inputs.device)[begin : begin + self._batch_size]
        raw = Batch(store.inputs.index_select(0, rows), store.targets.index_select(0, rows))
        return self._finished(raw, device, generators.get(env_id))

    def _finished(self, raw: Batch, device: torch.device, generator: Generator | None) -> Batch:
        """Augment, transfer to the device, and convert bytes to the host's input dtype."""
        inputs, targets = raw
        if generator is not None:
            # Before the scaling: stored pixels are bytes, a quarter of the size of floats.
            inputs = crop_and_flip(inputs, self._crop_padding, generator)
        if inputs.device != device:
            inputs, targets = self._transfer(inputs, device), self._transfer(targets, device)
        scale = self._scales[device]
        if scale is not None:
            inputs = scale.apply(inputs)
        elif not inputs.is_floating_point():
            inputs = inputs.long()
        return Batch(inputs, targets.long())


class _OrderOnDevices:
    """The row order of a pass, copied to a device when it is first needed there."""

    __slots__ = ("_copies", "_order", "_transfer")

    def __init__(self, order: Tensor, transfer: Transfer) -> None:
        self._order = order
        self._transfer = transfer
        self._copies = {order.device: order}

    def on(self, device: torch.device) -> Tensor:
        """Return the order on a device."""
        if device not in self._copies:
            self._copies[device] = self._transfer(self._order, device)
        return self._copies[device]


def _scale_on(device: torch.device, dataset: TensorDataset) -> _Scale | None:
    if dataset.pixel_scale is None:
        return None
    mean = torch.tensor(dataset.pixel_scale.mean)[:, None, None]
    std = torch.tensor(dataset.pixel_scale.std)[:, None, None]
    # (x - mean) / std as one multiply-add.
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
