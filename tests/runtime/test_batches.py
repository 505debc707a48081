"""The shared stream: who gets which samples, when, in what order, and with whose memory."""

import random
from collections.abc import Sequence
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.leyline.errors import InterruptedRunError, InvalidValueError
from esper.leyline.tasks import BatchMode
from esper.runtime import batches as batches_module
from esper.runtime.batches import Batch, SharedBatchIterator
from esper.runtime.datasets import Part, PixelScale, Split, TensorDataset

CPU = torch.device("cpu")
META = torch.device("meta")


def numbered(num_rows: int, offset: int = 0) -> Split:
    numbers = torch.arange(offset, offset + num_rows)
    return Split(inputs=numbers.float()[:, None], targets=numbers)


def numbered_set(num_train: int = 40, num_val: int = 7) -> TensorDataset:
    return TensorDataset(
        train=numbered(num_train), val=numbered(num_val, 1000), test=numbered(5, 2000)
    )


def image_set(num_train: int = 12) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (num_train, 3, 8, 8), generator=generator, dtype=torch.uint8)
    split = Split(inputs=pixels, targets=torch.arange(num_train))
    scale = PixelScale(mean=(100.0, 120.0, 140.0), std=(50.0, 60.0, 70.0))
    return TensorDataset(train=split, val=split, test=split, pixel_scale=scale, crop_padding=2)


def walk(iterator: SharedBatchIterator, round: int = 0, step: int = 0) -> list[Sequence[Batch]]:
    return list(iterator.batches(round=round, step=step))


def seen_by(env_id: int, passed: Sequence[Sequence[Batch]]) -> list[int]:
    return [number for shares in passed for number in shares[env_id].targets.tolist()]


@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 30), st.sampled_from(BatchMode))
@settings(max_examples=50, deadline=None)
def test_training_takes_whole_batches_of_distinct_samples(
    n_envs: int, batch_size: int, num_more: int, mode: BatchMode
) -> None:
    num_shares = n_envs if mode is BatchMode.SPLIT else 1
    num_train = num_shares * batch_size + num_more
    iterator = SharedBatchIterator(
        numbered_set(num_train), n_envs=n_envs, batch_size_per_env=batch_size, mode=mode, seed=1
    )

    passed = walk(iterator)

    assert len(passed) == len(iterator) == num_train // (num_shares * batch_size)
    assert {len(batch.targets) for shares in passed for batch in shares} == {batch_size}
    assert all(len(shares) == n_envs for shares in passed)
    lists = [seen_by(env_id, passed) for env_id in range(n_envs)]
    assert {len(seen) for seen in lists} == {len(iterator) * batch_size}
    if mode is BatchMode.SPLIT:
        together = [number for seen in lists for number in seen]
        assert len(set(together)) == len(together)
    else:
        assert all(seen == lists[0] for seen in lists)
        assert len(set(lists[0])) == len(lists[0])


@given(st.integers(1, 6), st.integers(1, 9), st.sampled_from(BatchMode))
@settings(max_examples=30, deadline=None)
def test_every_env_validates_on_the_whole_split_in_its_order(
    n_envs: int, batch_size: int, mode: BatchMode
) -> None:
    iterator = SharedBatchIterator(
        numbered_set(),
        part=Part.VAL,
        n_envs=n_envs,
        batch_size_per_env=batch_size,
        mode=mode,
        seed=1,
        max_batches=1,
    )

    passed = walk(iterator, round=3, step=4)

    assert len(passed) == len(iterator)
    for env_id in range(n_envs):
        assert seen_by(env_id, passed) == list(range(1000, 1007))


def test_inputs_and_targets_stay_together() -> None:
    iterator = SharedBatchIterator(numbered_set(), n_envs=2, batch_size_per_env=5, seed=1)

    for shares in walk(iterator):
        for inputs, targets in shares:
            assert torch.equal(inputs[:, 0].long(), targets)


@pytest.mark.parametrize("mode", BatchMode)
def test_order_depends_on_seed_round_and_step_alone(mode: BatchMode) -> None:
    def order(seed: int, round: int, step: int) -> tuple[int, ...]:
        iterator = SharedBatchIterator(
            numbered_set(), n_envs=2, batch_size_per_env=5, mode=mode, seed=seed
        )
        walk(iterator, round=9, step=9)  # an earlier pass leaves no trace
        return tuple(seen_by(0, walk(iterator, round, step)))

    coordinates = list(product((1, 2), (0, 1), (0, 1)))

    assert [order(*place) for place in coordinates] == [order(*place) for place in coordinates]
    assert len({order(*place) for place in coordinates}) == len(coordinates)


def test_shares_of_a_split_batch_own_their_storage() -> None:
    iterator = SharedBatchIterator(
        numbered_set(), n_envs=4, batch_size_per_env=5, mode=BatchMode.SPLIT, seed=1
    )
    tensors = [tensor for shares in walk(iterator) for batch in shares for tensor in batch]

    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)
    for tensor in tensors:
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("mode", BatchMode)
def test_batches_never_alias_the_data_set(mode: BatchMode, augment: bool) -> None:
    data = image_set()
    before = data.train.inputs.clone()
    iterator = SharedBatchIterator(
        data, n_envs=2, batch_size_per_env=3, mode=mode, seed=1, augment=augment
    )
    for shares in iterator.batches(round=0, step=0):
        for inputs, targets in shares:
            inputs.zero_()
            targets.zero_()

    assert torch.equal(data.train.inputs, before)
    assert data.train.targets.tolist() == list(range(12))


def test_shorter_pass_begins_like_the_whole_one() -> None:
    def make(max_batches: int | None) -> SharedBatchIterator:
        return SharedBatchIterator(
            numbered_set(), n_envs=1, batch_size_per_env=5, seed=1, max_batches=max_batches
        )

    whole, short = seen_by(0, walk(make(None))), seen_by(0, walk(make(3)))

    assert short == whole[:15]
    assert len(make(100)) == len(make(None)) == 8


def test_pass_without_a_batch_is_an_error_that_names_the_numbers() -> None:
    with pytest.raises(InvalidValueError, match=r"env = 9: 40 training samples .* batch of 45;"):
        SharedBatchIterator(
            numbered_set(), n_envs=5, batch_size_per_env=9, mode=BatchMode.SPLIT, seed=1
        )


def test_pixels_are_scaled_channel_by_channel() -> None:
    data = image_set()
    iterator = SharedBatchIterator(
        data, part=Part.VAL, n_envs=1, batch_size_per_env=12, seed=1, augment=True
    )
    [[(inputs, _)]] = walk(iterator)
    mean = torch.tensor([100.0, 120.0, 140.0]).view(3, 1, 1)
    std = torch.tensor([50.0, 60.0, 70.0]).view(3, 1, 1)

    assert inputs.dtype is torch.float32
    torch.testing.assert_close(inputs, (data.val.inputs.float() - mean) / std)


def test_bytes_of_text_become_indices() -> None:
    tokens = torch.arange(20, dtype=torch.uint8).view(5, 4)
    split = Split(inputs=tokens, targets=tokens)
    data = TensorDataset(train=split, val=split, test=split)

    [[(inputs, targets)]] = walk(
        SharedBatchIterator(data, part=Part.TEST, n_envs=1, batch_size_per_env=5, seed=1)
    )

    assert inputs.dtype is targets.dtype is torch.int64
    assert torch.equal(inputs, tokens.long())


@pytest.mark.parametrize("mode", BatchMode)
def test_augmentation_of_an_env_is_its_own_and_the_same_every_time(mode: BatchMode) -> None:
    def passed(n_envs: int) -> list[list[Batch]]:
        iterator = SharedBatchIterator(
            image_set(24), n_envs=n_envs, batch_size_per_env=6, mode=mode, seed=1, augment=True
        )
        return walk(iterator, round=1, step=2)

    first, second = passed(2), passed(2)

    for shares, again in zip(first, second, strict=True):
        assert all(torch.equal(one[0], two[0]) for one, two in zip(shares, again, strict=True))
    if mode is BatchMode.BROADCAST:
        assert torch.equal(first[0][0].targets, first[0][1].targets)
        assert not torch.equal(first[0][0].inputs, first[0][1].inputs)
        assert torch.equal(first[0][0].inputs, passed(1)[0][0].inputs)


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("mode", BatchMode)
def test_preloaded_data_give_the_same_batches(mode: BatchMode, augment: bool) -> None:
    def passed(preload: bool) -> list[list[Batch]]:
        iterator = SharedBatchIterator(
            image_set(),
            n_envs=2,
            batch_size_per_env=3,
            mode=mode,
            seed=1,
            augment=augment,
            preload=preload,
        )
        return walk(iterator)

    for shares, others in zip(passed(False), passed(True), strict=True):
        for one, two in zip(shares, others, strict=True):
            assert torch.equal(one.inputs, two.inputs)
            assert torch.equal(one.targets, two.targets)


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("mode", BatchMode)
def test_envs_live_on_the_devices_in_turn(mode: BatchMode, preload: bool) -> None:
    iterator = SharedBatchIterator(
        image_set(),
        n_envs=3,
        batch_size_per_env=2,
        mode=mode,
        seed=1,
        devices=[CPU, META],
        preload=preload,
    )
    for shares in iterator.batches(round=0, step=0):
        assert [inputs.device for inputs, _ in shares] == [CPU, META, CPU]
        assert [targets.device for _, targets in shares] == [CPU, META, CPU]


class CountingTransfer:
    def __init__(self) -> None:
        self.moved: list[tuple[torch.dtype, int]] = []

    def __call__(self, tensor: Tensor, device: torch.device) -> Tensor:
        self.moved.append((tensor.dtype, len(tensor)))
        return tensor.to(device)


def test_pixels_cross_to_a_device_as_bytes_and_once_for_all_its_envs() -> None:
    transfer = CountingTransfer()
    iterator = SharedBatchIterator(
        image_set(),
        n_envs=4,
        batch_size_per_env=6,
        seed=1,
        devices=[META],
        transfer=transfer,
    )
    walk(iterator)

    assert transfer.moved == [(torch.uint8, 6), (torch.int64, 6)] * 2


def test_preloaded_data_cross_once_and_a_pass_moves_only_its_order() -> None:
    transfer = CountingTransfer()
    iterator = SharedBatchIterator(
        image_set(),
        n_envs=4,
        batch_size_per_env=3,
        seed=1,
        devices=[META],
        preload=True,
        transfer=transfer,
    )
    num_for_loading = len(transfer.moved)
    walk(iterator, step=0)
    walk(iterator, step=1)

    assert transfer.moved[:num_for_loading] == [(torch.uint8, 12), (torch.int64, 12)]
    assert transfer.moved[num_for_loading:] == [(torch.int64, 12)] * 2


def test_preload_can_be_cancelled_between_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "PRELOAD_CHUNK_BYTES", 3 * 192)
    transfer = CountingTransfer()

    def cancel() -> None:
        if len(transfer.moved) == 2:
            raise InterruptedRunError("asked to stop")

    with pytest.raises(InterruptedRunError):
        SharedBatchIterator(
            image_set(),
            n_envs=1,
            batch_size_per_env=3,
            seed=1,
            preload=True,
            transfer=transfer,
            check_cancelled=cancel,
        )

    assert transfer.moved == [(torch.uint8, 3)] * 2


@pytest.mark.parametrize("part", [Part.VAL, Part.TEST])
def test_pass_that_never_changes_is_cut_once(part: Part) -> None:
    iterator = SharedBatchIterator(image_set(), n_envs=2, batch_size_per_env=5, seed=1, part=part)
    first, again = walk(iterator), walk(iterator, round=1, step=3)
    assert [shares[1].inputs.data_ptr() for shares in first] == [
        shares[1].inputs.data_ptr() for shares in again
    ]


def test_pass_too_large_to_be_kept_is_cut_anew_to_the_same_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = SharedBatchIterator(image_set(), n_envs=2, batch_size_per_env=5, seed=1, part=Part.VAL)
    monkeypatch.setattr(batches_module, "MAX_KEPT_BYTES", 12 * 3 * 8 * 8 * 4 - 1)
    cut = SharedBatchIterator(image_set(), n_envs=2, batch_size_per_env=5, seed=1, part=Part.VAL)
    passes = (walk(kept), walk(cut), walk(cut))
    inputs = [torch.cat([shares[0].inputs for shares in passed]) for passed in passes]
    assert torch.equal(inputs[0], inputs[1])
    assert torch.equal(inputs[1], inputs[2])
    assert passes[1][0][0].inputs.data_ptr() != passes[2][0][0].inputs.data_ptr()


def test_walking_leaves_the_global_generators_alone() -> None:
    states = torch.get_rng_state(), random.getstate()

    walk(SharedBatchIterator(image_set(), n_envs=2, batch_size_per_env=3, seed=1, augment=True))

    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()


@pytest.mark.parametrize(("mode", "augment"), [*product(BatchMode, (False, True))])
def test_an_iterator_for_some_envs_gives_them_the_same_shares(
    mode: BatchMode, augment: bool
) -> None:
    options = {"n_envs": 4, "batch_size_per_env": 3, "seed": 5, "mode": mode, "augment": augment}
    whole = SharedBatchIterator(image_set(24), **options)
    some = SharedBatchIterator(image_set(24), env_ids=(1, 3), **options)

    for step in range(2):
        pairs = zip(walk(whole, step=step), walk(some, step=step), strict=True)
        for expected, shares in pairs:
            for env_id in (1, 3):
                assert torch.equal(shares[env_id].inputs, expected[env_id].inputs)
                assert torch.equal(shares[env_id].targets, expected[env_id].targets)


class Transfers:
    """Moves tensors and notes where to."""

    def __init__(self) -> None:
        self.devices: list[torch.device] = []

    def __call__(self, tensor: Tensor, device: torch.device) -> Tensor:
        self.devices.append(device)
        return tensor.to(device)


@pytest.mark.parametrize("preload", [False, True])
def test_an_iterator_for_some_envs_gives_no_data_to_the_devices_of_others(preload: bool) -> None:
    transfer = Transfers()
    iterator = SharedBatchIterator(
        numbered_set(),
        n_envs=4,
        batch_size_per_env=4,
        seed=5,
        devices=[META, CPU],
        env_ids=(1, 3),
        preload=preload,
        transfer=transfer,
    )
    walk(iterator)
    assert META not in transfer.devices


@pytest.mark.parametrize("max_kept_bytes", [0, 1 << 20])
def test_a_held_out_pass_reaches_only_the_devices_of_the_envs_that_use_it(
    max_kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "MAX_KEPT_BYTES", max_kept_bytes)
    transfer = Transfers()
    iterator = SharedBatchIterator(
        numbered_set(),
        n_envs=4,
        batch_size_per_env=4,
        seed=5,
        part=Part.VAL,
        devices=[META, CPU],
        transfer=transfer,
    )
    for shares in iterator.batches(round=0, step=0):
        assert shares[1].inputs.device == CPU
    assert transfer.devices == []
    for shares in iterator.batches(round=0, step=0):
        assert shares[2].inputs.device == META
    assert set(transfer.devices) == {META}
