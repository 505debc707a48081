"""The transformer host: a GPT-style decoder with a slot after each segment of layers."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from esper.kasmina.hosts.dropout import SeededDropout
from esper.kasmina.hosts.segmented import SegmentedHost, require
from esper.kasmina.layers import CausalAttention, Embedding, Linear
from esper.leyline.actions import Topology
from esper.leyline.errors import ContractError
from esper.leyline.slots import InjectionSpec, Surface
from esper.leyline.tasks import TransformerHostSpec

__all__ = ["TransformerHost"]

MLP_EXPANSION = 4


class TransformerHost(SegmentedHost):
    """Token and position embeddings, pre-norm decoder layers, tied output head."""

    def __init__(self, spec: TransformerHostSpec) -> None:
        _check(spec)
        super().__init__(_injection_specs(spec), dict(_stages(spec)))
        self.tokens = Embedding(spec.vocab_size, spec.embed_dim)
        self.positions = Embedding(spec.block_size, spec.embed_dim)
        self.dropout = SeededDropout(spec.dropout)
        self.norm = nn.LayerNorm(spec.embed_dim)

    @property
    def topology(self) -> Topology:
        """Return the host's topology."""
        return Topology.TRANSFORMER

    def _enter(self, x: Tensor) -> Tensor:
        time, block_size = x.shape[1], self.positions.num_embeddings
        if time > block_size:
            raise ContractError(f"sequence of {time} tokens: this host takes at most {block_size}")
        embedded: Tensor = self.dropout(self.tokens(x) + self.positions.weight[:time])
        return embedded

    def _exit(self, x: Tensor) -> Tensor:
        # Weight tying: the head is the token embedding itself, so its parameters count once.
        return functional.linear(self.norm(x), self.tokens.weight)


class DecoderLayer(nn.Module):
    """Attention, then an MLP, each with pre-norm and a residual connection."""

    def __init__(self, spec: TransformerHostSpec) -> None:
        super().__init__()
        dim = spec.embed_dim
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = DroppedAttention(dim, spec.num_heads, spec.block_size, spec.dropout)
        self.mlp_norm = nn.LayerNorm(dim)
        self.expand = Linear(dim, MLP_EXPANSION * dim)
        self.contract = Linear(MLP_EXPANSION * dim, dim)
        self.dropout = SeededDropout(spec.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, channels) to the same shape."""
        attended: Tensor = self.dropout(self.attention(self.attention_norm(x)))
        x = x + attended
        inner = functional.gelu(self.expand(self.mlp_norm(x)))
        thought: Tensor = self.dropout(self.contract(inner))
        return x + thought


class DroppedAttention(CausalAttention):
    """Causal attention with dropout on the attention weights."""

    causal_bias: Tensor

    def __init__(self, channels: int, num_heads: int, block_size: int, dropout: float) -> None:
        super().__init__(channels, num_heads, Linear(channels, channels))
        self.dropout = SeededDropout(dropout)
        bias = torch.full((block_size, block_size), -math.inf).triu(1)
        # A buffer, so that it moves to the host's device; not persistent, as it follows from the
        # spec.
        self.register_buffer("causal_bias", bias, persistent=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values of (batch, head, time, width) tensors."""
        if not self.dropout.is_active:
            return super().attend(q, k, v)
        # torch's fused attention would draw its dropout mask from the global generator.
        time, width = q.shape[-2:]
        scores = (q / math.sqrt(width)) @ k.transpose(-2, -1) + self.causal_bias[:time, :time]
        mixed: Tensor = self.dropout(scores.softmax(dim=-1)) @ v
        return mixed


def _stages(spec: TransformerHostSpec) -> Iterator[tuple[str, nn.Module]]:
    num_layers = spec.num_layers // spec.num_segments
    for slot_id in spec.slot_ids:
        yield slot_id, nn.Sequential(*(DecoderLayer(spec) for _ in range(num_layers)))


def _injection_specs(spec: TransformerHostSpec) -> Iterator[InjectionSpec]:
    num_layers = spec.num_layers // spec.num_segments
    for index, slot_id in enumerate(spec.slot_ids):
        yield InjectionSpec(
            slot_id=slot_id,
            channels=spec.embed_dim,
            order=index,
            surface=Surface.BLOCK_END,
            layer_range=(index * num_layers, (index + 1) * num_layers),
            position=(index + 1) / spec.num_segments,
        )


def _check(spec: TransformerHostSpec) -> None:
    layers, segments, heads = spec.num_layers, spec.num_segments, spec.num_heads
    require(segments >= 1, "num_segments", segments, "must be positive")
    require(layers >= 1, "num_layers", layers, "must be positive")
    require(layers % segments == 0, "num_layers", layers, f"must divide into {segments} segments")
    require(heads >= 1, "num_heads", heads, "must be positive")
    require(
        spec.embed_dim % heads == 0, "embed_dim", spec.embed_dim, f"must divide into {heads} heads"
    )
    require(0 <= spec.dropout < 1, "dropout", spec.dropout, "must be from 0 to below 1")
