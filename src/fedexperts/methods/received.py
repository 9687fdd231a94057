"""What methods share that compare a part with what it was when it came."""

from typing import cast

from torch import Tensor
from torch.func import functional_call

from fedexperts.methods.base import Model
from fedexperts.methods.message import State, inside


def as_received(model: Model, part: str, received: State, x: Tensor) -> Tensor:
    """What a part gives for `x` as the server sent it, in evaluation mode: nothing of it moves."""
    module = model.get_submodule(part)
    training = module.training
    try:
        return cast(Tensor, functional_call(module.eval(), inside(received, part), (x,)))
    finally:
        module.train(training)
