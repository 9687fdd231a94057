"""What methods share whose server trains something of its own, from what clients sent."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedexperts.methods.message import State, inside
from fedexperts.replay import aside

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


def shuffled(rows: int, epochs: int, rng: np.random.Generator, device: torch.device) -> Tensor:
    """An order of the rows for each epoch."""
    return torch.from_numpy(np.stack([rng.permutation(rows) for _ in range(epochs)])).to(device)


def in_batches(work: Callable[..., None], columns: Sequence[Tensor], order: Tensor, size: int) -> None:
    """Do `work` with the columns' rows in this order, which has a row for each epoch, `size` at a time.

    The last ones of an epoch may be fewer. Such steps are many and small, and a GPU waits for the host in each: there
    they are captured, so `work` must not look at values, and what it changes must stay where it lies.
    """
    whole = order.shape[1] // size * size
    works: Sequence[Callable[[], None]] = [
        _Batches(work, columns, part) for part in (order[:, :whole].reshape(-1, size), order[:, whole:])
    ]
    each_epoch = (whole // size, int(whole < order.shape[1]))
    with aside(order.device).replays(works, "a server's steps") if order.is_cuda else nullcontext(works) as steps:
        for _ in range(len(order)):
            for once, times in zip(steps, each_epoch, strict=True):
                for _ in range(times):
                    once()


class _Batches:
    """Batches of one size, another one in each call."""

    def __init__(self, work: Callable[..., None], columns: Sequence[Tensor], order: Tensor) -> None:
        self.work, self.columns, self.order = work, columns, order
        self.next = torch.zeros(1, dtype=torch.int64, device=order.device)

    def __call__(self) -> None:
        index = self.order.index_select(0, self.next).squeeze(0)
        self.work(*(column.index_select(0, index) for column in self.columns))
        self.next += 1


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    leaves = [leaf for group in optimizer.param_groups for leaf in group["params"]]
    for leaf, gradient in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
        leaf.grad = gradient
    optimizer.step()
    optimizer.zero_grad()
