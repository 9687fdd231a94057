"""A whole model as one part, for methods that give a client more than one."""

from typing import cast

from torch import Tensor, nn

from fedexperts.models.cnn import Shape
from fedexperts.models.zoo import ModelRef, build


class Classifier(nn.Module):
    """`head(extractor(x))`, of any model; `features` is how many the extractor gives."""

    def __init__(self, model: ModelRef, shape: Shape, classes: int) -> None:
        super().__init__()
        parts = build(model, shape, classes)
        self.extractor = parts["extractor"]
        self.head = parts["head"]
        self.features = cast(int, self.extractor.features)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.extractor(x)))
