"""ResNet-20 as published: sizes, and a shortcut without parameters."""

import torch
from tests.kasmina.tools import normal
from torch import nn

from esper.runtime.networks.resnet import BasicBlock, resnet20


def test_each_layer_has_half_the_pixels_and_twice_the_channels() -> None:
    network, x = resnet20(), normal(2, 3, 32, 32)
    h = network.bn1(network.conv1(x))

    shapes = []
    for layer in (network.layer1, network.layer2, network.layer3):
        h = layer(h)
        shapes.append(tuple(h.shape))

    assert shapes == [(2, 16, 32, 32), (2, 32, 16, 16), (2, 64, 8, 8)]
    weighted = [part for part in network.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    assert len(weighted) == 20


def test_block_without_its_branch_is_the_shortcut_padded_with_empty_channels() -> None:
    block, x = BasicBlock(4, 8).eval(), normal(2, 4, 6, 6)
    nn.init.zeros_(block.bn2.weight)

    h = block(x)

    assert torch.equal(h[:, 2:6], torch.relu(x[:, :, ::2, ::2]))
    assert not h[:, :2].any()
    assert not h[:, 6:].any()
