"""What methods share that compute the weights of a part from tensors of several parts."""

from collections.abc import Mapping
from typing import cast

from torch import Tensor
from torch.func import functional_call

from fedexperts.methods.base import Model
from fedexperts.methods.message import inside


def called_with(model: Model, part: str, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """What a part gives for `x` with some weights in the place of its own."""
    return cast(Tensor, functional_call(model.get_submodule(part), inside(weights, part), (x,)))


def key(name: str) -> str:
    """A tensor's name in one word, as a part's member can be called."""
    return name.replace(".", "/")
