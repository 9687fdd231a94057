"""All clients: which of them can be stacked, who is on the device, and who waits in the store."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from fedexperts.engine.batches import width
from fedexperts.engine.cohort import Cohort
from fedexperts.engine.member import model_of
from fedexperts.engine.phases import phase
from fedexperts.engine.program import Program
from fedexperts.engine.store import Store
from fedexperts.errors import MethodError, SavedStateError
from fedexperts.methods import Method, Round, State, select
from fedexperts.randomness import SERVER, torch_stream
from fedexperts.task import ClientSpec

Item = TypeVar("Item")
Group = tuple[Program, int]
"""Clients that can be stacked: the same program and the same batch width."""


class Fleet:
    """Brings clients onto the device in cohorts, in buffers that stay where they are from round to round.

    A cohort stays on the device until its place is needed; only then its clients go back to the store. So a run with
    all clients in every round copies nothing, and one with few sampled clients needs room for those only.
    """

    def __init__(
        self,
        method: Method,
        specs: Mapping[int, ClientSpec],
        seed: int,
        store: Store,
        device: torch.device,
        dtype: torch.dtype,
        limit: int,
        first_round: Round,
        start: State,
    ) -> None:
        """`limit`: about how many clients are on the device together, shared out among the groups.

        `start`: the server's state before the first round.
        """
        self.method = method
        self.specs = specs
        self.seed = seed
        self.store = store
        self.device = device
        self.dtype = dtype
        self.limit = limit
        self.together = self.most = 0  # how many were brought last, and at most since waves were last begun
        self.first_round = first_round
        self.start = start
        self._programs: dict[Hashable, Program] = {}
        self._buffers: dict[Group, State] = {}
        self._resident: dict[Group, Cohort] = {}
        self._changed: set[Group] = set()
        self._group_of: dict[int, Group] = {}  # of those that were needed so far
        self._sizes: dict[Group, int] = defaultdict(int)  # how many those are
        self._group(next(iter(specs)))  # a method that cannot be is known at once

    def waves(self, clients: Sequence[int]) -> Iterator[list[Cohort]]:
        """Cohorts that cover the clients; those of one wave are on the device together."""
        self.most = 0
        chunks = {
            group: _chunks(ids, self._room(len(ids), len(clients))) for group, ids in self.members(clients).items()
        }
        for number in range(max(map(len, chunks.values()), default=0)):
            ready = [(group, parts[number]) for group, parts in chunks.items() if number < len(parts)]
            for wave in _chunks(ready, self.limit):
                self.together = sum(len(ids) for _, ids in wave)
                self.most = max(self.most, self.together)
                yield [self._bring(group, ids) for group, ids in wave]

    def has_room_for(self, count: int) -> bool:
        """Whether so many clients can be on the device together."""
        return count <= self.limit

    def members(self, clients: Sequence[int]) -> dict[Group, list[int]]:
        """The clients by group, those with the most steps first: see `Cohort`."""
        members: dict[Group, list[int]] = defaultdict(list)
        for client in sorted(clients, key=lambda k: -self.specs[k].samples):
            members[self._group(client)].append(client)
        return members

    def changed(self, cohort: Cohort) -> None:
        """These clients have trained: they must not be lost."""
        self._changed |= {group for group, resident in self._resident.items() if resident is cohort}

    def noted(self, cohorts: Sequence[Cohort]) -> Callable[[], None]:
        """Note what these clients keep, as far as it is nowhere else; calling the result puts it back."""
        unsaved = [resident for group, resident in self._resident.items() if group in self._changed]
        kept = [
            tensor
            for cohort in cohorts
            if any(cohort is one for one in unsaved)
            for tensor in select(cohort.tensors, self.method.kept()).values()
        ]
        copies = [torch.empty_like(tensor) for tensor in kept]
        _copy(kept, copies)
        return partial(_copy, copies, kept)

    def shrink(self) -> int:
        """Give all memory back, and take half as many clients at a time; how many were too many, if not one alone."""
        self.flush()
        self._resident.clear()
        self._buffers.clear()
        tried = self.together if self.together > 1 else self.most  # one that is left over has the others' memory beside
        self.limit = max(1, tried // 2)
        return tried if tried > 1 else 0

    @phase("saving")
    def flush(self) -> None:
        """Bring what has changed on the device back to the store."""
        for group in self._changed:
            cohort = self._resident[group]
            kept = select(cohort.tensors, self.method.kept())
            if self.store.device.type == "cpu":  # one copy per tensor, not one per client
                kept = {name: tensor.cpu() for name, tensor in kept.items()}
            for position, client in enumerate(cohort.clients):
                self.store.put(client.id, {name: tensor[position] for name, tensor in kept.items()})
        self._changed.clear()

    def fresh(self, client: int) -> State:
        """A client's kept tensors before it has ever trained; parts that come from the server are as it first sends."""
        with torch_stream(self.seed, "init", SERVER if self.method.same_start() else client):
            own = model_of(self.method, self.specs[client], self.dtype).state_dict()
        own |= self.method.receive(own, self.method.send(self.start, self.specs[client].public, self.first_round))
        return select(own, self.method.kept())

    def kept(self, client: int) -> State:
        """A client's kept tensors, wherever they are now."""
        self.flush()
        return self._stored(client)

    def _stored(self, client: int) -> State:
        tensors = self.store.get(client)
        if tensors is None:
            return self.fresh(client)
        layout = {name: shape for name, (shape, _) in self.program(client).layout.items()}
        if wrong := sorted(name for name, tensor in tensors.items() if layout.get(name) != tuple(tensor.shape)):
            raise SavedStateError(
                f"{self.specs[client].called}'s model is not the one that the run was started with: {', '.join(wrong)} "
                "would not fit; give it the same model"
            )
        return tensors

    def present(self, client: int) -> Mapping[str, Tensor]:
        """A client's tensors as they are: on the device if it is there, else what it keeps."""
        cohort, position = self._place(client)
        if cohort is not None:
            return cohort.of(position)
        return self._stored(client)

    def change(self, client: int, changes: State) -> None:
        """Give a client new values for some of its kept tensors, wherever it is."""
        cohort, position = self._place(client)
        if cohort is not None:
            own = cohort.of(position)
            _copy(list(changes.values()), [own[name] for name in changes])
            self.changed(cohort)
        else:
            self.store.put(client, {**self.present(client), **changes})

    def leave(self, client: int) -> State | None:
        """Let a client go elsewhere, with what it keeps if it has trained yet; nothing of it stays on the device."""
        self.flush()
        self._resident.pop(self._group(client), None)
        return self.store.pop(client)

    def _place(self, client: int) -> tuple[Cohort | None, int]:
        """The cohort on the device that a client is in, and where in it."""
        cohort = self._resident.get(self._group(client))
        if cohort is None or client not in cohort.positions:
            return None, 0
        return cohort, cohort.positions[client]

    def program(self, client: int) -> Program:
        return self._group(client)[0]

    @phase("data")
    def _bring(self, group: Group, ids: list[int]) -> Cohort:
        resident = self._resident.get(group)
        if resident is not None and [spec.id for spec in resident.clients] == ids:
            return resident
        self.flush()
        program = group[0]
        buffers = self._memory(group, len(ids))
        stack = {name: buffer[: len(ids)] for name, buffer in buffers.items()}
        cohort = Cohort(program, [self.specs[k] for k in ids], stack, buffers)
        cohort.write([self._stored(k) for k in ids])
        self._resident[group] = cohort
        return cohort

    def _memory(self, group: Group, least: int) -> State:
        """Room for so many clients of a group; it stays where it is until more is needed."""
        buffers = self._buffers.get(group)
        if buffers is None or len(next(iter(buffers.values()))) < least:
            all_known = len(self._group_of) == len(self.specs)
            likely = self._sizes[group] if all_known else 2 * least + 2  # more than now may come, seldom more than this
            most = max(least, min(likely, self.limit))
            buffers = self._buffers[group] = {
                name: torch.empty((most, *shape), dtype=dtype, device=self.device)
                for name, (shape, dtype) in group[0].layout.items()
            }
        return buffers

    def _room(self, of_group: int, asked: int) -> int:
        """How many clients of a group may be on the device together: its share of the limit."""
        return asked if self.has_room_for(asked) else max(1, round(self.limit * of_group / asked))

    def _group(self, client: int) -> Group:
        """A client's group. To find it takes a model without values: nobody's is looked for before it is needed."""
        if client not in self._group_of:
            group = self._group_of[client] = self._found(self.specs[client])
            self._sizes[group] += 1
        return self._group_of[client]

    def _found(self, spec: ClientSpec) -> Group:
        with torch.device("meta"):
            model = model_of(self.method, spec, self.dtype)
        parts = [name for name, _ in model.named_children()]
        if set(parts) != set(self.method.owners):
            raise MethodError(
                f"method '{self.method.name}' says who owns {', '.join(self.method.owners)}, "
                f"but {spec.called}'s model has the parts {', '.join(parts)}"
            )
        program = Program(model)
        program = self._programs.setdefault(program.signature, program)  # one for all alike
        return program, width(spec.samples, self.method.train.batch_size)


def _chunks(items: list[Item], size: int) -> list[list[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _copy(source: list[Tensor], target: list[Tensor]) -> None:
    if source:
        torch._foreach_copy_(target, source)  # a launch or two, however many there are
