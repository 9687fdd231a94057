"""What methods share that compare a part with what it was when it came."""

from typing import cast

from torch import Tensor
from torch.func import functional_call

from fedexperts.methods.base import Model
from fedexperts.methods.message import State, select


def as_received(model: Model, part: str, received: State, x: Tensor) -> Tensor:
    """What a part gives for `x` as the server sent it, in evaluation mode: nothing of it moves."""
    module = model.get_submodule(part)
    tensors = {name.removeprefix(f"{part}."): tensor for name, tensor in select(received, {part}).items()}
    training = module.training
    try:
        return cast(Tensor, functional_call(module.eval(), tensors, (x,)))
    finally:
        module.train(training)
