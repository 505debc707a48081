"""The seeds of transformer hosts; all are causal.

All but one end in a linear layer that is initialised to zero. No norm follows it, so its gradient
has a normal magnitude from the first step; the layers before it get one after its first update.
"""

from torch import Tensor, nn
from torch.nn import functional

from esper.kasmina.blueprints.seed import Norm, Seed
from esper.kasmina.layers import CausalAttention, Linear, ZeroLinear
from esper.leyline.errors import InvalidValueError

__all__ = [
    "Attention",
    "Lora",
    "LoraLarge",
    "Mlp",
    "MlpSmall",
    "TextNorm",
]

NUM_HEADS = 4


class Attention(Seed):
    """Causal self-attention with four heads."""

    structure = "x + W_out attention(W_qkv x)"
    birth = "W_out and its bias are zero, so the branch adds nothing."

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attention = self.build_attention(channels)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of the query, key, value and output projections, with biases."""
        return 4 * channels**2 + 4 * channels

    @classmethod
    def check_channels(cls, channels: int) -> None:
        """Raise if the channels are not divisible by the number of heads."""
        super().check_channels(channels)
        if channels % NUM_HEADS:
            constraint = f"must be divisible by the {NUM_HEADS} heads"
            raise InvalidValueError("channels", channels, constraint, cls.__name__)

    def build_attention(self, channels: int) -> CausalAttention:
        """Return the attention layer, with a zero-initialised output projection."""
        return CausalAttention(channels, NUM_HEADS, ZeroLinear(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Add the attention output."""
        added: Tensor = self.attention(x)
        return x + added


class TextNorm(Norm):
    """Interpolates between the features and their LayerNorm."""

    structure = "x + tanh(a) (g LN(x) - x) + b"

    def __init__(self, channels: int) -> None:
        super().__init__(nn.LayerNorm(channels, elementwise_affine=False), (channels,))


class Lora(Seed):
    """A residual low-rank linear map (LoRA), rank 8."""

    structure = "x + W_up W_down x, rank 8"
    birth = "W_up is zero, so the branch adds nothing."
    rank = 8

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = Linear(channels, self.rank, bias=False)
        self.up = ZeroLinear(self.rank, channels, bias=False)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of both factors."""
        return 2 * cls.rank * channels

    def forward(self, x: Tensor) -> Tensor:
        """Add the low-rank map."""
        added: Tensor = self.up(self.down(x))
        return x + added


class LoraLarge(Lora):
    """A residual low-rank linear map (LoRA), rank 32."""

    structure = "x + W_up W_down x, rank 32"
    rank = 32


class Mlp(Seed):
    """A residual two-layer MLP with expansion factor 4."""

    structure = "x + W_2 gelu(W_1 x), expansion factor 4"
    birth = "W_2 and its bias are zero, so the branch adds nothing."
    expansion = 4

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.expand = Linear(channels, self.expansion * channels)
        self.contract = ZeroLinear(self.expansion * channels, channels)

    @classmethod
    def num_params(cls, channels: int) -> int:
        """Return the size of both layers, with biases."""
        return 2 * cls.expansion * channels**2 + (cls.expansion + 1) * channels

    def forward(self, x: Tensor) -> Tensor:
        """Add the MLP's output."""
        added: Tensor = self.contract(functional.gelu(self.expand(x)))
        return x + added


class MlpSmall(Mlp):
    """A residual two-layer MLP with expansion factor 2."""

    structure = "x + W_2 gelu(W_1 x), expansion factor 2"
    expansion = 2
