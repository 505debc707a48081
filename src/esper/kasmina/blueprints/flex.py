"""The attention seed that uses torch's flex attention on CUDA, and SDPA elsewhere."""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from esper.kasmina.blueprints.transformer import NUM_HEADS, Attention
from esper.kasmina.layers import CausalAttention, ZeroLinear

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["MAX_BLOCK_MASKS", "FlexAttention", "FlexCausalAttention"]

MAX_BLOCK_MASKS: Final = 8


class FlexCausalAttention(CausalAttention):
    """Causal flex attention with an LRU cache of its block masks."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, NUM_HEADS, ZeroLinear(channels, channels))
        self.block_masks: dict[tuple[int, torch.device], BlockMask] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values of (batch, head, time, width) tensors."""
        if q.device.type != "cuda":  # flex attention has no backward on the CPU
            return super().attend(q, k, v)
        return self.attend_in_blocks(q, k, v)

    def attend_in_blocks(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute flex attention, which skips fully masked blocks."""
        mixed: Tensor = flex_kernel()(q, k, v, block_mask=self._block_mask(q.shape[2], q.device))
        return mixed

    def _block_mask(self, time: int, device: torch.device) -> "BlockMask":
        # Imported here because the import is slow and needed on CUDA only.
        from torch.nn.attention.flex_attention import create_block_mask

        key = (time, device)
        mask = self.block_masks.pop(key, None)
        if mask is None:
            mask = create_block_mask(_is_visible, None, None, time, time, device=device)
        self.block_masks[key] = mask  # re-inserted, so that the least recently used comes first
        if len(self.block_masks) > MAX_BLOCK_MASKS:
            del self.block_masks[next(iter(self.block_masks))]
        return mask


class FlexAttention(Attention):
    """Causal self-attention with four heads, as flex attention on CUDA."""

    structure = "x + W_out flex_attention(W_qkv x)"

    def build_attention(self, channels: int) -> CausalAttention:
        """Return the flex attention layer."""
        return FlexCausalAttention(channels)


@cache
def flex_kernel() -> Callable[..., Any]:
    """Return the compiled kernel; uncompiled, it would materialise the full score matrix."""
    # Imported here because the import is slow and needed on CUDA only.
    from torch.nn.attention.flex_attention import flex_attention

    # Compiled once per process and shared by all seeds.
    return torch.compile(flex_attention)


def _is_visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key
