"""Small convolutional networks for any input size, each split into `extractor` and `head`."""

import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

Shape = tuple[int, ...]
KERNEL = 5


class ConvExtractor(nn.Sequential):
    """5×5 convolutions without padding, each with ReLU and 2×2 max-pooling, then ReLU'd linear layers.

    Where the input is too small for that (8×8 digits), the convolutions are padded to keep their size, so that every
    network of this kind works on every input.
    """

    def __init__(self, shape: Shape, filters: Sequence[int], widths: Sequence[int]) -> None:
        channels, *sides = shape
        padding = 0 if all(_pooled(side, len(filters), 0) >= 1 for side in sides) else KERNEL // 2
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for i, count in enumerate(filters, 1):
            layers[f"conv{i}"] = nn.Conv2d(channels, count, KERNEL, padding=padding)
            layers[f"pool{i}"] = nn.MaxPool2d(2)
            layers[f"relu{i}"] = nn.ReLU()  # after the pooling: the same numbers for a quarter of the work
            channels = count
        layers["flatten"] = nn.Flatten()
        features = channels * math.prod(_pooled(side, len(filters), padding) for side in sides)
        for i, width in enumerate(widths, 1):
            layers[f"fc{i}"] = nn.Linear(features, width)
            layers[f"fc_relu{i}"] = nn.ReLU()
            features = width
        super().__init__(layers)
        self.features = features


def _pooled(side: int, times: int, padding: int) -> int:
    """The side of an image after `times` convolutions and poolings; below 1 if it does not fit."""
    for _ in range(times):
        side = (side + 2 * padding - KERNEL + 1) // 2
    return side
