"""Deep networks of the size that papers compare: ResNet-18 and -34, MobileNet, GoogLeNet, as extractors.

Each is the variant that is usual for 32×32 images: it begins with a 3×3 convolution of stride 1 and no pooling, where
the one for ImageNet shrinks the image four times. A larger image is shrunk to about that size at once, by the first
convolution (from 64×64 on) and a pooling after it (from 128×128 on); a smaller one is taken as it is. They end in the
mean over all places, `features` numbers, on which the head stands. `slim` divides all widths; `joined` takes the mean
of so many neighbouring features at the end, so that networks of different widths end alike.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.models.cnn import Shape


class BatchNorm(nn.BatchNorm2d):
    """One value has no spread: a batch of one sample, at one place, is normalised by the running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() == self.num_features:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class Everywhere(nn.Module):
    """The mean over all places of an image, and over so many channels side by side."""

    def __init__(self, joined: int) -> None:
        super().__init__()
        self.joined = joined

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)).reshape(x.shape[0], -1, self.joined).mean(2)


class Residual(nn.Module):
    """Two 3×3 convolutions beside a short cut (He et al. 2016, the basic block)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_conv(before, after, 3, stride), *_conv(after, after, 3)[:-1])
        same = before == after and stride == 1
        self.shortcut = nn.Sequential(*([] if same else _conv(before, after, 1, stride)[:-1]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Inception(nn.Module):
    """1×1, 3×3 and twice 3×3 convolutions and a pooling side by side (Szegedy et al. 2015).

    `widths` are those of the paper's Table 1: 1×1, 3×3 reduced, 3×3, 5×5 reduced, 5×5, pooled.
    """

    def __init__(self, before: int, widths: Sequence[int]) -> None:
        super().__init__()
        one, small, three, smaller, five, pooled = widths
        self.channels = one + three + five + pooled
        self.branches = nn.ModuleList(
            [
                nn.Sequential(*_conv(before, one, 1)),
                nn.Sequential(*_conv(before, small, 1), *_conv(small, three, 3)),
                nn.Sequential(*_conv(before, smaller, 1), *_conv(smaller, five, 3), *_conv(five, five, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, padding=1), *_conv(before, pooled, 1)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def resnet(blocks: Sequence[int], shape: Shape, slim: int = 1) -> nn.Sequential:
    """ResNet with basic blocks, so many of each of four widths: (2, 2, 2, 2) is ResNet-18, (3, 4, 6, 3) ResNet-34.

    He et al. 2016, with the head for 10 classes 11.17 and 21.28 M parameters. The short cut of a block that changes
    size is a 1×1 convolution (their option B).
    """
    width = 64 // slim
    layers, before = _stem(shape, width), width
    for number, count in enumerate(blocks):
        after = width << number
        for place in range(count):
            stride = 2 if number and not place else 1
            layers[f"block{number + 1}-{place + 1}"] = Residual(before, after, stride)
            before = after
    return _ended(layers, before)


def mobilenet(shape: Shape, slim: int = 1, joined: int = 1) -> nn.Sequential:
    """MobileNet (Howard et al. 2017, the first version, α = 1): 13 times a 3×3 convolution of each channel, then 1×1.

    With the head for 10 classes 3.22 M parameters. The 32×32 variant: of the paper's five strides the first is 1.
    """
    widths = [width // slim for width in (32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)]
    shrinking = {2, 4, 6, 12}
    layers = _stem(shape, widths[0])
    for number, (before, after) in enumerate(pairwise(widths), 1):
        stride = 2 if number in shrinking else 1
        layers[f"block{number}"] = nn.Sequential(
            *_conv(before, before, 3, stride, groups=before), *_conv(before, after, 1)
        )
    return _ended(layers, widths[-1], joined)


INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Widths of GoogLeNet's blocks (Szegedy et al. 2015, Table 1); before 4a and 5a the image is pooled."""


def googlenet(shape: Shape, slim: int = 1, joined: int = 1) -> nn.Sequential:
    """GoogLeNet's nine inception blocks on one 3×3 convolution with 192 filters, without the auxiliary heads.

    With the head for 10 classes 6.16 M parameters. As everywhere for 32×32 images, two 3×3 convolutions stand where
    the paper has one 5×5, and every convolution is followed by BatchNorm (so none has a bias).
    """
    before = 192 // slim
    layers = _stem(shape, before)
    for name, full in INCEPTIONS.items():
        if name in ("4a", "5a"):
            layers[f"pool{name}"] = nn.MaxPool2d(3, 2, padding=1)
        layers[f"block{name}"] = block = Inception(before, [max(1, width // slim) for width in full])
        before = block.channels
    return _ended(layers, before, joined)


def _stem(shape: Shape, width: int) -> "OrderedDict[str, nn.Module]":
    """The first convolution, which shrinks a large image."""
    channels, *sides = shape
    conv, norm, relu = _conv(channels, width, 3, stride=2 if min(sides) >= 64 else 1)
    layers = OrderedDict[str, nn.Module](conv1=conv, norm1=norm, relu1=relu)
    if min(sides) >= 128:
        layers["pool1"] = nn.MaxPool2d(2)
    return layers


def _conv(before: int, after: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Convolution, BatchNorm, ReLU."""
    conv = nn.Conv2d(before, after, size, stride, padding=size // 2, groups=groups, bias=False)
    return [conv, BatchNorm(after), nn.ReLU()]


def _ended(layers: "OrderedDict[str, nn.Module]", features: int, joined: int = 1) -> nn.Sequential:
    layers["mean"] = Everywhere(joined)
    made = nn.Sequential(layers)
    made.features = features // joined  # type: ignore[assignment]
    return made
