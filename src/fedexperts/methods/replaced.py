"""What methods share that call a part with other weights than its own: as it came, or made of several parts."""

from collections.abc import Mapping
from typing import cast

from torch import Tensor
from torch.func import functional_call

from fedexperts.methods.base import Model
from fedexperts.methods.message import State, inside


def called_with(model: Model, part: str, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """What a part gives for `x` with some weights in the place of its own."""
    return cast(Tensor, functional_call(model.get_submodule(part), inside(weights, part), (x,)))


def as_received(model: Model, part: str, received: State, x: Tensor) -> Tensor:
    """What a part gives for `x` as the server sent it, in evaluation mode: nothing of it moves."""
    module = model.get_submodule(part)
    training = module.training
    try:
        module.eval()
        return called_with(model, part, received, x)
    finally:
        module.train(training)


def key(name: str) -> str:
    """A tensor's name in one word, as a part's member can be called."""
    return name.replace(".", "/")
