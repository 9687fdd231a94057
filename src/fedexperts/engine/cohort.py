"""A cohort: clients of one shape, side by side in stacked tensors. A job: what they do in one round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedexperts.engine.program import Program
from fedexperts.methods import Model, Stage, State
from fedexperts.task import ClientSpec


@dataclass
class Cohort:
    """Clients with the same program, the ones with the most steps first.

    Those still training are then always a prefix of the stack: a slice, no masks, no wasted work.
    """

    program: Program
    clients: list[ClientSpec]
    tensors: State  # each: clients × the tensor's own shape

    def __len__(self) -> int:
        return len(self.clients)

    def of(self, position: int) -> "ClientView":
        """One client's tensors."""
        return ClientView(self.tensors, position)

    def each(self) -> list["ClientView"]:
        """Every client's tensors."""
        return [self.of(position) for position in range(len(self))]

    def write(self, changes: Sequence[Mapping[str, Tensor]]) -> None:
        """Give each client new values for some of its tensors; one that all get is copied once."""
        for name in changes[0]:
            values = [change[name] for change in changes]
            target = self.tensors[name]
            if all(value is values[0] for value in values):
                target.copy_(values[0].expand_as(target))
            elif all(value.device == target.device and value.dtype == target.dtype for value in values):
                torch.stack(values, out=target)
            else:  # from the store: one by one, so that nothing is on the device twice
                for row, value in zip(target, values, strict=True):
                    row.copy_(value, non_blocking=True)


class ClientView(Mapping[str, Tensor]):
    """One client's tensors as views of the stack, made only when asked for."""

    def __init__(self, stack: State, position: int) -> None:
        self.stack = stack
        self.position = position

    def __getitem__(self, name: str) -> Tensor:
        return self.stack[name][self.position]

    def __contains__(self, name: object) -> bool:
        return name in self.stack

    def __iter__(self) -> Iterator[str]:
        return iter(self.stack)

    def __len__(self) -> int:
        return len(self.stack)


@dataclass(frozen=True)
class Lesson:
    """One stage for a cohort: `order` is clients × steps × batch width, `steps` how many each client makes."""

    stage: Stage
    order: Tensor
    steps: tuple[int, ...]

    def active(self, step: int) -> int:
        """How many clients, a prefix, still train in this step."""
        return sum(count > step for count in self.steps)


@dataclass
class Job:
    """A cohort's local training in one round; the executor fills in the losses."""

    cohort: Cohort
    lessons: list[Lesson]
    received: State  # what the server sent: one value for all, or clients × value
    common: frozenset[str]  # the names in `received` that are one value for all
    losses: list[Tensor] = field(default_factory=list)  # per lesson: each client's mean loss

    def received_by(self, position: int) -> State:
        """What one client received."""
        return {n: t if n in self.common else t[position] for n, t in self.received.items()}


@dataclass
class Query:
    """A function of each sample, for some samples of each client."""

    cohort: Cohort
    function: Callable[[Model, Tensor], Any]
    index: Tensor  # clients × samples
    counts: tuple[int, ...]  # how many of a client's row count
