"""A vision transformer: every patch sees all others, and positions tell them apart."""

import torch
from tests.kasmina.tools import normal

from esper.runtime.networks.vit import Attention, digits_vit


def test_every_patch_sees_all_others() -> None:
    attention, x = Attention(8, num_heads=2), normal(1, 5, 8).requires_grad_()

    for patch in range(5):
        (gradient,) = torch.autograd.grad(attention(x)[0, patch].sum(), x)
        assert gradient.abs().sum(dim=2).gt(0).all()


def test_attention_is_the_weighted_mean_of_the_values() -> None:
    attention, x = Attention(4, num_heads=1), normal(1, 3, 4)
    q, k, v = attention.qkv(x).chunk(3, dim=2)

    weights = torch.softmax(q @ k.transpose(1, 2) / 2, dim=2)

    assert torch.allclose(attention(x), attention.proj(weights @ v), atol=1e-6)


def test_patches_in_another_order_are_another_image() -> None:
    network, image = digits_vit().eval(), normal(1, 1, 8, 8)
    turned = image.roll(2, dims=3)

    assert not torch.allclose(network(image), network(turned), atol=1e-4)
    with torch.no_grad():
        network.positions.zero_()
    assert torch.allclose(network(image), network(turned), atol=1e-5)
