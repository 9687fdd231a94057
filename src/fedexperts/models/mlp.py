"""A network for the rows of a table."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedexperts.models.cnn import Shape


class TableExtractor(nn.Sequential):
    """ReLU'd linear layers."""

    def __init__(self, shape: Shape, widths: Sequence[int]) -> None:
        (features,) = shape
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for i, (before, after) in enumerate(pairwise((features, *widths)), 1):
            layers[f"fc{i}"] = nn.Linear(before, after)
            layers[f"relu{i}"] = nn.ReLU()
        super().__init__(layers)
        self.features = widths[-1]
