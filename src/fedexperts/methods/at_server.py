"""What methods share whose server trains something of its own, from what clients sent."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedexperts.methods.message import State, inside

Part = TypeVar("Part", bound=nn.Module)


def loaded(made: Callable[[], Part], server: State, part: str) -> Part:
    """A module of the server's with its tensors, copied: what it held stays as it is."""
    with torch.device("meta"):
        module = made()
    module.load_state_dict({name: tensor.clone() for name, tensor in inside(server, part).items()}, assign=True)
    return module


def held(module: nn.Module, part: str) -> State:
    """The module as the server keeps it."""
    return {f"{part}.{name}": tensor.detach() for name, tensor in module.state_dict().items()}


def shuffled(
    rows: Tensor, answers: Tensor, size: int, epochs: int, rng: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """What each step sees of the rows and of what goes with them, where each is seen once in an epoch."""
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(rows))).to(rows.device)
        yield from zip(torch.split(rows[order], size), torch.split(answers[order], size), strict=True)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
