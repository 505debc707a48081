"""ResNet-20 for images of 32x32 pixels, as in He et al. (2015), section 4.2."""

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["ResNet", "resnet20"]

BLOCKS_PER_LAYER = 3
WIDTHS = (16, 32, 64)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (the paper's option A)."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.stride = channels // in_channels
        self.conv1 = nn.Conv2d(in_channels, channels, 3, self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.num_new = channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in, height, width) to (batch, out, height / stride, width / stride)."""
        h = functional.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        kept = x[:, :, :: self.stride, :: self.stride]
        shortcut = functional.pad(kept, (0, 0, 0, 0, self.num_new // 2, self.num_new // 2))
        return functional.relu(h + shortcut)


class ResNet(nn.Module):
    """A residual network of three layers, each with half the pixels of the one before."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        narrow, medium, wide = WIDTHS
        self.conv1 = nn.Conv2d(3, narrow, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(narrow)
        self.layer1 = _layer(narrow, narrow)
        self.layer2 = _layer(narrow, medium)
        self.layer3 = _layer(medium, wide)
        self.fc = nn.Linear(wide, num_classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(part.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, height, width) to logits."""
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(torch.mean(x, dim=(2, 3)))
        return logits


def _layer(in_channels: int, channels: int) -> nn.Sequential:
    later = (BasicBlock(channels, channels) for _ in range(BLOCKS_PER_LAYER - 1))
    return nn.Sequential(BasicBlock(in_channels, channels), *later)


def resnet20() -> ResNet:
    """Return a ResNet-20 for ten classes: 269,722 parameters."""
    return ResNet(num_classes=10)
