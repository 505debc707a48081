"""A context changes every split of its data alike, and each env gets its own context's batches."""

from functools import partial

import pytest
import torch

from esper.leyline.contexts import ContextSpec
from esper.leyline.errors import ContractError
from esper.runtime.batches import SharedBatchIterator
from esper.runtime.contexts import ContextBatches, transformed
from esper.runtime.datasets import Part, PixelScale, Split, TensorDataset

NUM_CLASSES = 5
SIZES = {Part.TRAIN: 40, Part.VAL: 20, Part.TEST: 30}
PLAIN = ContextSpec(name="plain")
PERMUTED = ContextSpec(name="permuted", is_permuted=True)
NOISY = ContextSpec(name="noisy", label_noise=0.3)
DIM = ContextSpec(name="dim", input_scale=0.25)


def split_of(num_rows: int, seed: int) -> Split:
    source = torch.Generator().manual_seed(seed)
    return Split(
        inputs=torch.randint(0, 256, (num_rows, 2, 4, 4), generator=source).to(torch.uint8),
        targets=torch.randint(0, NUM_CLASSES, (num_rows,), generator=source),
    )


DATA = TensorDataset(
    **{part.value: split_of(size, seed) for seed, (part, size) in enumerate(SIZES.items())},
    pixel_scale=PixelScale(mean=(100.0, 90.0), std=(50.0, 40.0)),
)


def stream(dataset: TensorDataset, **options: object) -> SharedBatchIterator:
    facts = {"n_envs": 3, "batch_size_per_env": 8, "seed": 3, **options}
    return SharedBatchIterator(dataset, **facts)


def test_context_that_changes_nothing_keeps_the_data_set() -> None:
    assert transformed(DATA, PLAIN, NUM_CLASSES) is DATA


@pytest.mark.parametrize("part", Part)
def test_pixels_of_all_images_and_channels_are_in_one_order(part: Part) -> None:
    # An image whose pixels are their own positions shows the order.
    positions = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    chart = Split(inputs=positions, targets=torch.zeros(1, dtype=torch.long))
    marked = TensorDataset(train=chart, val=chart, test=chart)
    order = transformed(marked, PERMUTED, NUM_CLASSES).train.inputs.flatten().long()

    changed = transformed(DATA, PERMUTED, NUM_CLASSES).part(part)

    assert sorted(order.tolist()) == list(range(16))
    assert order.tolist() != list(range(16))
    assert torch.equal(changed.inputs.flatten(2), DATA.part(part).inputs.flatten(2)[..., order])
    assert torch.equal(changed.targets, DATA.part(part).targets)


@pytest.mark.parametrize("part", Part)
def test_share_of_labels_is_replaced_by_other_classes(part: Part) -> None:
    before = DATA.part(part)

    changed = transformed(DATA, NOISY, NUM_CLASSES).part(part)

    assert int((changed.targets != before.targets).sum()) == round(0.3 * SIZES[part])
    assert set(changed.targets.tolist()) <= set(range(NUM_CLASSES))
    assert torch.equal(changed.inputs, before.inputs)


def test_scale_multiplies_normalised_inputs() -> None:
    (plain, *_), (dim, *_) = (
        stream(transformed(DATA, context, NUM_CLASSES), part=Part.VAL).batches(round=0, step=0)
        for context in (PLAIN, DIM)
    )

    torch.testing.assert_close(dim[0].inputs, 0.25 * plain[0].inputs)


def test_tokens_cannot_be_scaled() -> None:
    tokens = Split(inputs=torch.zeros(4, 6, dtype=torch.uint8), targets=torch.zeros(4, 6).long())
    text = TensorDataset(train=tokens, val=tokens, test=tokens)

    with pytest.raises(ContractError, match="context 'dim': tokens cannot be scaled"):
        transformed(text, DIM, NUM_CLASSES)


@pytest.mark.parametrize("part", Part)
def test_each_env_gets_its_contexts_rows_in_the_order_of_all(part: Part) -> None:
    sources = {
        context.name: stream(transformed(DATA, context, NUM_CLASSES), part=part)
        for context in (PLAIN, PERMUTED, NOISY)
    }
    batches = ContextBatches(
        sources=sources,
        context_of=lambda round_index, env_id: ("permuted", "plain")[(round_index + env_id) % 2],
        num_envs=3,
        env_ids=(0, 2),
    )

    for round_index, name in enumerate(("permuted", "plain")):
        seen = list(batches.batches(round=round_index, step=4))
        alone = list(sources[name].batches(round=round_index, step=4))
        assert len(seen) == len(alone) == len(batches)
        for shares, expected in zip(seen, alone, strict=True):
            assert len(shares) == 3
            for env_id in (0, 2):
                assert torch.equal(shares[env_id].inputs, expected[env_id].inputs)
                assert torch.equal(shares[env_id].targets, expected[env_id].targets)


def test_slice_of_shares_is_that_of_their_envs() -> None:
    make = partial(stream, part=Part.VAL)
    batches = ContextBatches(
        sources={"plain": make(DATA)},
        context_of=lambda *_: "plain",
        num_envs=3,
        env_ids=range(3),
    )

    (shares, *_) = batches.batches(round=0, step=0)

    assert [share.targets.tolist() for share in shares[1:]] == [
        shares[1].targets.tolist(),
        shares[2].targets.tolist(),
    ]
