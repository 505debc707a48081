"""A small vision transformer with pre-norm blocks, mean pooling and dropout."""

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["VisionTransformer", "digits_vit"]


class Attention(nn.Module):
    """Self-attention in which every patch sees all others."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, patches, dim) to the same shape."""
        heads = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        projected: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return projected


class Block(nn.Module):
    """Attention, then an MLP, each with pre-norm, dropout and a residual connection."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, patches, dim) to the same shape."""
        attended: Tensor = self.dropout(self.attention(self.norm1(x)))
        x = x + attended
        inner: Tensor = self.dropout(self.mlp(self.norm2(x)))
        return x + inner


class VisionTransformer(nn.Module):
    """Patches with learned positions, blocks, and a linear head on their mean."""

    def __init__(
        self,
        *,
        image_size: int,
        patch_size: int,
        dim: int,
        depth: int,
        num_heads: int,
        num_classes: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, dim, patch_size, stride=patch_size)
        self.positions = nn.Parameter(0.02 * torch.randn((image_size // patch_size) ** 2, dim))
        self.blocks = nn.Sequential(*(Block(dim, num_heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 1, height, width) to logits."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(x)).mean(dim=1))
        return logits


def digits_vit() -> VisionTransformer:
    """Return a vision transformer for the 8x8 digits: 16 patches, 3 blocks of width 32."""
    return VisionTransformer(
        image_size=8, patch_size=2, dim=32, depth=3, num_heads=4, num_classes=10, dropout=0.1
    )
