"""The attention seed that runs torch's flex attention on CUDA, and plain attention elsewhere."""

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
    """Causal attention through block masks, of which it keeps the eight used last."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, NUM_HEADS, ZeroLinear(channels, channels))
        self.block_masks: dict[tuple[int, torch.device], BlockMask] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values of (batch, head, time, width) tensors."""
        if q.device.type != "cuda":  # flex attention has no backward on the CPU
            return super().attend(q, k, v)
        return self.attend_in_blocks(q, k, v)

    def attend_in_blocks(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values, skipping the blocks that the mask leaves empty."""
        mixed: Tensor = flex_kernel()(q, k, v, block_mask=self._block_mask(q.shape[2], q.device))
        return mixed

    def _block_mask(self, time: int, device: torch.device) -> "BlockMask":
        # Heavy, and needed on CUDA only.
        from torch.nn.attention.flex_attention import create_block_mask

        key = (time, device)
        mask = self.block_masks.pop(key, None)
        if mask is None:
            mask = create_block_mask(_is_visible, None, None, time, time, device=device)
        self.block_masks[key] = mask  # a dict keeps the order of insertion: oldest use first
        if len(self.block_masks) > MAX_BLOCK_MASKS:
            del self.block_masks[next(iter(self.block_masks))]
        return mask


class FlexAttention(Attention):
    """Causal self-attention with four heads, in blocks where the device offers it."""

    structure = "x + W_out flex_attention(W_qkv x)"

    def build_attention(self, channels: int) -> CausalAttention:
        """Return the attention that knows block masks."""
        return FlexCausalAttention(channels)


@cache
def flex_kernel() -> Callable[..., Any]:
    """Return the compiled kernel; uncompiled it would hold every score in memory."""
    # Heavy, and needed on CUDA only.
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _is_visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key
