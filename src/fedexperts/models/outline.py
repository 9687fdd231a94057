"""A model that is somebody else's, as far as others must know it: what its tensors look like, not what it does."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedexperts.config import Frozen
from fedexperts.errors import ModelError
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


class Stem(Frozen):
    """The beginning of an extractor, where it can be cut in two: how many of its tensors that has, what it gives."""

    tensors: int = Field(ge=0, le=10_000)
    shape: tuple[Size, ...] = Field(max_length=4)
    place: Literal["", "net"] = ""  # where in the extractor the layers are


class Outline(Frozen):
    """Enough to lay out messages of any method. It makes models that have such tensors and know nothing."""

    features: int = Field(ge=1, le=1 << 24)  # that the extractor gives
    bias: bool = True  # whether the head has one
    extractor: tuple[Layout, ...] | None = Field(default=None, max_length=10_000)  # none: that is not told
    stem: Stem | None = None

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        tensors = self.extractor or ()
        if sum(math.prod(tensor.shape) for tensor in tensors) > VALUES or math.prod(self.stem_shape) > VALUES:
            raise ValueError(f"a model of more than {VALUES:,} values")
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise ValueError("two tensors of one name")
        try:
            with torch.device("meta"):
                self((1,), 1)
        except (KeyError, AttributeError, TypeError, RuntimeError) as error:
            # One tensor inside another, or in the place of something that every module has.
            raise ValueError(f"no module can have such tensors: {error}") from None
        return self

    @property
    def stem_shape(self) -> tuple[int, ...]:
        return self.stem.shape if self.stem else ()

    @classmethod
    def of(cls, parts: Parts, whole: bool, stem: Stem | None = None) -> Self:
        """Of a model's parts; the layout of its extractor only if the `whole` is to be told."""
        learned = dict(parts["extractor"].named_parameters())
        tensors = [Layout.of(name, t, name not in learned) for name, t in parts["extractor"].state_dict().items()]
        head = cast(nn.Linear, parts["head"])
        seen = {"features": head.in_features, "bias": head.bias is not None}
        return cls.check(seen | {"extractor": tensors, "stem": stem} if whole else seen)

    def __call__(self, shape: Shape, classes: int) -> Parts:
        known = (UNKNOWN,) if self.extractor is None else self.extractor
        return {
            "extractor": Blank(known, (self.features,), self.stem),
            "head": nn.Linear(self.features, classes, bias=self.bias),
        }


class Blank(nn.Module):
    """A network with the tensors of another one, as far as they are known; all that it finds is zeros."""

    def __init__(self, tensors: Sequence[Layout], gives: tuple[int, ...], stem: Stem | None = None) -> None:
        super().__init__()
        self.features = math.prod(gives)
        self.gives = gives
        self.stem = stem
        self.layouts = tuple(tensors)
        for tensor in tensors:
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
        return like.new_zeros(len(x), *self.gives)

    def cut(self, head: nn.Linear) -> tuple[nn.Module, nn.Module]:
        """The stem, and all after it with the head."""
        if self.stem is None:
            raise ModelError("nothing is known of where this model can be cut in two")
        prefix = f"{self.stem.place}." if self.stem.place else ""
        inner = [tensor.model_copy(update={"name": tensor.name.removeprefix(prefix)}) for tensor in self.layouts]
        rest = Blank(inner[self.stem.tensors :], (head.out_features,))
        rest.add_module("head", head)
        return Blank(inner[: self.stem.tensors], self.stem.shape), rest
