"""A model that is somebody else's, as far as others must know it: what its tensors look like, not what it does."""

import math
from typing import Annotated, Literal, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedexperts.config import Frozen
from fedexperts.models.cnn import Shape
from fedexperts.models.own import Parts

VALUES = 1 << 28
"""Of a model that one would make room for, at most."""
Place = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", max_length=200)]
Size = Annotated[int, Field(ge=0, le=VALUES)]
DType = Literal["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


class Layout(Frozen):
    """A tensor without its values."""

    name: Place
    shape: tuple[Size, ...] = Field(max_length=8)
    dtype: DType
    buffer: bool = False  # no parameter: it is not learned

    @classmethod
    def of(cls, name: str, tensor: Tensor, buffer: bool) -> Self:
        kind = str(tensor.dtype).removeprefix("torch.")
        return cls.check({"name": name, "shape": tuple(tensor.shape), "dtype": kind, "buffer": buffer})

    def blank(self) -> Tensor:
        return torch.zeros(self.shape, dtype=getattr(torch, self.dtype))


UNKNOWN = Layout(name="unknown", shape=(), dtype="float32")
"""Stands for the tensors of an extractor that are not told."""


class Outline(Frozen):
    """Enough to lay out messages of any method. It makes models that have such tensors and know nothing."""

    features: int = Field(ge=1, le=1 << 24)  # that the extractor gives
    bias: bool = True  # whether the head has one
    extractor: tuple[Layout, ...] | None = Field(default=None, max_length=10_000)  # none: that is not told

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        tensors = self.extractor or ()
        if sum(math.prod(tensor.shape) for tensor in tensors) > VALUES:
            raise ValueError(f"a model of more than {VALUES:,} values")
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise ValueError("two tensors of one name")
        try:
            with torch.device("meta"):
                Blank(self)
        except (
            KeyError,
            AttributeError,
            TypeError,
            RuntimeError,
        ) as error:  # one inside another, or a module's own name
            raise ValueError(f"no module can have such tensors: {error}") from None
        return self

    @classmethod
    def of(cls, parts: Parts, whole: bool) -> Self:
        """Of a model's parts; the layout of its extractor only if the `whole` is to be told."""
        learned = dict(parts["extractor"].named_parameters())
        tensors = [Layout.of(name, t, name not in learned) for name, t in parts["extractor"].state_dict().items()]
        head = cast(nn.Linear, parts["head"])
        seen = {"features": head.in_features, "bias": head.bias is not None}
        return cls.check(seen | {"extractor": tensors} if whole else seen)

    def __call__(self, shape: Shape, classes: int) -> Parts:
        return {"extractor": Blank(self), "head": nn.Linear(self.features, classes, bias=self.bias)}


class Blank(nn.Module):
    """An extractor with the tensors of another one, if they are known; all that it finds is zeros."""

    def __init__(self, outline: Outline) -> None:
        super().__init__()
        self.features = outline.features
        for tensor in [UNKNOWN] if outline.extractor is None else outline.extractor:
            *places, name = tensor.name.split(".")
            module: nn.Module = self
            for place in places:
                if place not in dict(module.named_children()):
                    module.add_module(place, nn.Module())
                module = module.get_submodule(place)
            value = tensor.blank()
            if tensor.buffer:
                module.register_buffer(name, value)
            else:
                module.register_parameter(name, nn.Parameter(value, requires_grad=value.is_floating_point()))

    def forward(self, x: Tensor) -> Tensor:
        like = next(self.parameters(), x)
        return like.new_zeros(len(x), self.features)
