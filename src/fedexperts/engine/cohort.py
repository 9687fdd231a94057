"""A cohort: clients of one shape, side by side in stacked tensors. A job: what they do in one round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedexperts.engine.program import Program
from fedexperts.errors import MethodError
from fedexperts.methods import Message, Model, Stage, State
from fedexperts.task import ClientSpec


@dataclass
class Cohort:
    """Clients with the same program, the ones with the most steps first.

    Those still training are then always a prefix of the stack: a slice, no masks, no wasted work.
    """

    program: Program
    clients: list[ClientSpec]
    tensors: State  # each: clients × the tensor's own shape
    buffers: State  # the memory that the tensors are the beginning of

    def __len__(self) -> int:
        return len(self.clients)

    def of(self, position: int) -> "ClientView":
        """One client's tensors."""
        return self.each()[position]

    def each(self) -> Sequence["ClientView"]:
        """Every client's tensors."""
        return self._views

    @cached_property
    def _views(self) -> tuple["ClientView", ...]:
        return tuple(ClientView(self.tensors, position) for position in range(len(self)))

    @cached_property
    def positions(self) -> dict[int, int]:
        """Where a client is in the stack."""
        return {client.id: position for position, client in enumerate(self.clients)}

    def absent(self) -> "Cohort":
        """Who they are, without their tensors: for those who ask later, and must not hold on to the memory."""
        return replace(self, tensors={}, buffers={})

    def write(self, changes: Sequence[Mapping[str, Tensor]]) -> None:
        """Give each client new values for some of its tensors; one that all get is copied once."""
        for name in {name: None for change in changes for name in change}:
            target = self.tensors[name]
            values = {i: change[name] for i, change in enumerate(changes) if name in change}
            for i, value in values.items():
                if value.shape != target.shape[1:]:
                    raise MethodError(
                        f"{self.clients[i].called} gets {name} of shape {tuple(value.shape)}, "
                        f"its model's has {tuple(target.shape[1:])}"
                    )
            first = next(iter(values.values()))
            everyone = len(values) == len(self)
            if everyone and all(value is first for value in values.values()):
                target.copy_(first.expand_as(target))
            elif everyone and all(value.device == target.device for value in values.values()):
                target.copy_(torch.stack(list(values.values())))
            else:  # from the store: one by one, so that nothing is on the device twice
                for i, value in values.items():
                    target[i].copy_(value, non_blocking=True)


class ClientView(Mapping[str, Tensor]):
    """One client's tensors as views of the stack, made only when asked for, and then once."""

    def __init__(self, stack: State, position: int) -> None:
        self.stack = stack
        self.position = position
        self._made: State = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = self.stack[name][self.position]
        return self._made[name]

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

    def __post_init__(self) -> None:
        if list(self.steps) != sorted(self.steps, reverse=True):
            raise ValueError(f"clients of a stack come with falling numbers of steps, not {self.steps}")

    def active(self, step: int) -> int:
        """How many clients, a prefix, still train in this step."""
        return sum(count > step for count in self.steps)


@dataclass(frozen=True)
class Received:
    """What the server sent to a cohort: one value for all, or clients × value."""

    tensors: State
    common: frozenset[str]  # the names that are one value for all

    @classmethod
    def of(cls, clients: Sequence[ClientSpec], heard: Sequence[State]) -> "Received":
        names = heard[0].keys()
        for client, own in zip(clients, heard, strict=True):
            if own.keys() != names:
                differing = ", ".join(sorted(own.keys() ^ names))
                raise MethodError(f"{clients[0].called} and {client.called} do not both receive {differing}")
        columns = {name: [own[name] for own in heard] for name in names}
        common = frozenset(name for name, column in columns.items() if all(value is column[0] for value in column))
        return cls({n: column[0] if n in common else torch.stack(column) for n, column in columns.items()}, common)

    def by(self, position: int) -> State:
        """What one client received."""
        return {n: t if n in self.common else t[position] for n, t in self.tensors.items()}

    def first(self, count: int) -> "Received":
        """What the first clients received."""
        return Received({n: t if n in self.common else t[:count] for n, t in self.tensors.items()}, self.common)

    def roomy(self, count: int) -> "Received":
        """Memory for what `count` clients receive."""
        room = {
            n: t.clone() if n in self.common else t.new_zeros((count, *t.shape[1:])) for n, t in self.tensors.items()
        }
        return Received(room, self.common)

    @property
    def dims(self) -> dict[str, int | None]:
        """For `vmap`: where the client's dimension is."""
        return {name: None if name in self.common else 0 for name in self.tensors}


@dataclass
class Job:
    """A cohort's local training in one round; the executor fills in the losses."""

    cohort: Cohort
    lessons: list[Lesson]
    received: "Received"
    sent: Sequence[Message]  # each client's message from the server
    losses: list[Tensor] = field(default_factory=list)  # per lesson: each client's mean loss
    collected: "Query | None" = None  # the pass over the training data after training, if there was one


@dataclass
class Query:
    """A function of each sample, for some samples of each client."""

    cohort: Cohort
    function: Callable[[Model, Tensor, State], Any]  # (model, x, received) → something for each sample
    received: "Received"
    index: Tensor  # clients × samples
    counts: tuple[int, ...]  # how many of a client's row count
    again: bool = False  # whether the same is asked round after round, of clients that stay where they are
