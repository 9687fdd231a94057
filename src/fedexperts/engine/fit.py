"""One stage in training: leaves, an optimiser, and a step. The same code for one client and for a stack of them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedexperts.config import TrainSettings
from fedexperts.engine.cohort import Received
from fedexperts.engine.program import Program
from fedexperts.methods import Batch, Stage, State, part_of

Memory = dict[str, Tensor]
"""What an optimiser keeps of one leaf."""

SHAPES = 1024
"""So many are compiled at most: each stage of each model is some, one for each number of clients still training."""

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Forward passes run within this."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False)


class Fit:
    """Trains `tensors` in place: one client, or a stack whose first dimension is the client, with a loss for each.

    The sum of the clients' losses gives each client its own gradient, and the optimisers work element by element, so
    a stack trains exactly as its clients would one by one.
    """

    def __init__(
        self,
        program: Program,
        stage: Stage,
        tensors: Mapping[str, Tensor],
        received: State | Received,
        train: TrainSettings,
        precision: str,
        compiled: bool = False,
        memory: "dict[str, Memory] | None" = None,
    ) -> None:
        """For a stack `received` is `Received`, for one client its own tensors.

        `memory`: where fits that never run side by side find what their optimisers keep of a leaf, if it is as large,
        and leave it for others. They may share it since each forgets it before it begins.
        """
        self.program = program
        self.stage = stage
        self.received = received
        self.train = train
        self.precision = precision
        self.compiled = compiled
        # `.data`, not `.detach()`: views of one stack would share a version counter, and another thread's step with
        # another client would look like a change of this one's tensors.
        self.leaves = {name: tensors[name].data.requires_grad_() for name in stage.moving(program.parameters)}
        self.tensors = {name: tensor.data for name, tensor in tensors.items()} | self.leaves
        self.optimizer = self._optimizer({} if memory is None else memory)
        self._losses = program.bind(lambda model, x, y, received: stage.loss(model, Batch(x, y), received))
        if isinstance(received, Received):
            self._losses = vmap(self._losses, in_dims=(0, 0, 0, received.dims), randomness="different")
        if compiled:
            self._losses = _compiled(self._losses)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step; returns the loss, or the losses of the stack."""
        self.program.train_only(self.stage.parts)
        with autocast(x.device, self.precision):
            received = self.received.tensors if isinstance(self.received, Received) else self.received
            losses: Tensor = self._losses(self.tensors, x, y, received)
        leaves = list(self.leaves.values())
        # What a loss does not use has a gradient of zero, for one client as in a stack of which some use it.
        gradients = torch.autograd.grad(losses.sum(), leaves, allow_unused=True, materialize_grads=True)
        try:
            for leaf, gradient in zip(leaves, gradients, strict=True):
                # Laid out as the leaf is: an optimiser takes all leaves together only then, and Adam refuses others.
                leaf.grad = gradient if gradient.stride() == leaf.stride() else torch.empty_like(leaf).copy_(gradient)
            self.optimizer.step()
        finally:  # given back, or each captured step would hold gradients of its own, and one that failed too
            self.optimizer.zero_grad()
        return losses.detach()

    def first(self, count: int) -> "Fit":
        """The same fit for the first `count` clients of the stack, its optimiser's memory included."""
        assert isinstance(self.received, Received)
        kept = {name: self.optimizer.state[leaf] for name, leaf in self.leaves.items()}
        return Fit(
            self.program,
            self.stage,
            {name: tensor[:count] for name, tensor in self.tensors.items()},
            self.received.first(count),
            self.train,
            self.precision,
            self.compiled,
            {n: {k: v[:count] if v.dim() else v for k, v in memory.items()} for n, memory in kept.items()},
        )

    def forget(self) -> None:
        """Empty the optimiser's memory, in place."""
        for memory in self.optimizer.state.values():
            for value in memory.values():
                value.zero_()

    def _optimizer(self, shared: dict[str, Memory]) -> torch.optim.Optimizer:
        train = self.train.model_copy(update=PLAIN) if self.stage.plain else self.train
        groups = [
            {
                "params": [leaf for name, leaf in self.leaves.items() if part_of(name) == part],
                "lr": self.stage.rates.get(part, train.lr),
            }
            for part in self.stage.parts
        ]
        optimizer: torch.optim.Optimizer
        zeros: Callable[[Tensor], Memory]
        if train.optimizer == "sgd":
            optimizer = torch.optim.SGD(groups, train.lr, train.momentum, weight_decay=train.weight_decay, foreach=True)
            zeros = _no_memory if train.momentum == 0 else _momentum_memory
        else:
            on_gpu = any(leaf.is_cuda for leaf in self.leaves.values())
            optimizer = torch.optim.Adam(
                groups, train.lr, weight_decay=train.weight_decay, fused=True, capturable=on_gpu
            )
            zeros = _adam_memory
        for name, leaf in self.leaves.items():
            kept = shared.get(name)
            if not kept or leaf.shape not in {tensor.shape for tensor in kept.values()}:
                kept = shared[name] = zeros(leaf)
            optimizer.state[leaf] = kept
        return optimizer


def _compiled(losses: Callable[..., Any]) -> Callable[..., Any]:
    # Torch counts by code, and to it all fits are one: `vmap`'s. After eight shapes it would compile no more.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = SHAPES
    return torch.compile(losses, dynamic=False)


def memories(train: TrainSettings, stage: Stage) -> int:
    """How many tensors like it an optimiser keeps for each one that moves."""
    if stage.plain or (train.optimizer == "sgd" and train.momentum == 0):
        return 0
    return 1 if train.optimizer == "sgd" else 2


# The optimisers' memory, made here and not at their first step, so that it can be sliced and emptied.


def _no_memory(leaf: Tensor) -> Memory:
    return {}


def _momentum_memory(leaf: Tensor) -> Memory:
    return {"momentum_buffer": torch.zeros_like(leaf)}


def _adam_memory(leaf: Tensor) -> Memory:
    step = torch.zeros((), device=leaf.device)  # a number of steps, in float32 whatever the leaf is
    return {"step": step, "exp_avg": torch.zeros_like(leaf), "exp_avg_sq": torch.zeros_like(leaf)}
