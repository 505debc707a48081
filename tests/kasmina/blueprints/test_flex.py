"""The block path of flex attention, which CUDA runs, against plain attention."""

import pytest
import torch
from tests.kasmina.tools import generator, normal
from torch.nn.attention.flex_attention import flex_attention

from esper.kasmina.blueprints import build_seed, flex
from esper.kasmina.blueprints.flex import MAX_BLOCK_MASKS, FlexCausalAttention
from esper.leyline.actions import Blueprint, Topology


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> FlexCausalAttention:
    # Compiling needs a toolchain and minutes; the uncompiled kernel computes the same.
    monkeypatch.setattr(flex, "flex_kernel", _eager_kernel)
    seed = build_seed(Topology.TRANSFORMER, Blueprint.FLEX_ATTENTION, 64, generator())
    attention = seed.get_submodule("attention")
    assert isinstance(attention, FlexCausalAttention)
    return attention


def _eager_kernel() -> object:
    return flex_attention


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_attention_in_blocks_equals_plain_attention(attention: FlexCausalAttention) -> None:
    q, k, v = (normal(2, 4, 20, 16, seed=seed) for seed in range(3))
    with torch.no_grad():
        in_blocks = attention.attend_in_blocks(q, k, v)
        torch.testing.assert_close(in_blocks, attention.attend(q, k, v))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_only_the_masks_used_last_are_kept(attention: FlexCausalAttention) -> None:
    lengths = [*range(1, MAX_BLOCK_MASKS + 1), 1, MAX_BLOCK_MASKS + 1]
    for time in lengths:
        q = normal(1, 4, time, 16)
        with torch.no_grad():
            attention.attend_in_blocks(q, q, q)
    kept = [time for time, _ in attention.block_masks]
    assert kept == [*range(3, MAX_BLOCK_MASKS + 1), 1, MAX_BLOCK_MASKS + 1]
