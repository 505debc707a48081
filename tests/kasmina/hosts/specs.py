"""Small hosts of every kind of shape, and input for them."""

import torch
from tests.kasmina.tools import generator, normal
from torch import Tensor

from esper.leyline.tasks import CnnHostSpec, HostSpec, TransformerHostSpec

SMALL_CNN = CnnHostSpec(in_channels=3, image_size=8, num_classes=5, base_channels=2)

SMALL_TRANSFORMER = TransformerHostSpec(
    block_size=8, num_layers=4, num_heads=2, embed_dim=8, num_segments=2, vocab_size=11
)

SMALL_HOSTS: dict[str, HostSpec] = {
    "cnn": SMALL_CNN,
    "cnn with pools behind some blocks": CnnHostSpec(
        in_channels=1, image_size=8, num_classes=5, base_channels=2, num_blocks=4, num_pools=2
    ),
    "cnn without pools": CnnHostSpec(
        in_channels=3, image_size=4, num_classes=5, base_channels=1, kernel_size=1, num_pools=0
    ),
    "transformer": SMALL_TRANSFORMER,
}


def batch(spec: HostSpec, seed: int = 1) -> Tensor:
    """Return raw input for a host."""
    if isinstance(spec, CnnHostSpec):
        return normal(6, spec.in_channels, spec.image_size, spec.image_size, seed=seed)
    shape = (3, spec.block_size)
    return torch.randint(spec.vocab_size, shape, generator=generator(seed))
