"""Several processes, on one machine or more, that do one run together: what goes between them.

All of them walk through the same code and meet in the same places. What travels is JSON and the bytes of tensors.
"""

import atexit
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fedexperts import errors, torchrun
from fedexperts.errors import FedExpertsError, SettingsError
from fedexperts.methods import State

ALIGNED = 16
"""Tensors begin at multiples of so many bytes in what travels, so that they can be used where they arrive."""
PATIENCE = timedelta(days=1)
"""A rank may wait long for another that has more to do. One that has died is noticed by torchrun, which ends all."""

T = TypeVar("T")


@dataclass(frozen=True)
class Parcel:
    """Something said, as JSON, and named tensors."""

    note: Any = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


class Ranks:
    """The processes of a run. Each call is made by all of them, in the same order."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes, prints, and is the server."""
        return self.rank == 0

    def check_devices(self, asked: str, device: torch.device) -> None:
        """Each has a GPU of its own, or none has one: NCCL takes no two processes on the same."""
        if asked not in ("auto", "cuda", "cpu"):
            raise SettingsError(
                f"device '{asked}' would be that of all {self.size} processes; under torchrun there is: auto, cuda, cpu"
            )
        used = self.notes(str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None)
        if why := not_one_each(used):
            raise SettingsError(
                f"{why}; give torchrun --nproc-per-node=N with as many as a machine has GPUs, or the run --device cpu"
            )

    def notes(self, note: Any) -> list[Any]:
        """What everybody says, in the order of the ranks."""
        said = torch.frombuffer(bytearray(json.dumps(note).encode()), dtype=torch.uint8)
        lengths = _all(torch.tensor([len(said)]))
        return [json.loads(raw.numpy().tobytes()) for raw in _uneven(said, [int(length) for length in lengths])]

    def gather(self, parcels: Sequence[Parcel], device: torch.device) -> list[Parcel]:
        """Everybody's parcels, in the order of the ranks, with their tensors on the device."""
        layouts = self.notes([[parcel.note, _layout(parcel.tensors)] for parcel in parcels])
        flat = _flat([parcel.tensors for parcel in parcels], device)
        arrived = _uneven(flat, [sum(_length(layout) for _, layout in of_rank) for of_rank in layouts])
        return [
            Parcel(note, tensors)
            for raw, of_rank in zip(arrived, layouts, strict=True)
            for (note, _), tensors in zip(of_rank, _unpacked(raw, [layout for _, layout in of_rank]), strict=True)
        ]

    def spread(self, tensors: State, device: torch.device) -> State:
        """The leader's tensors, for everybody."""
        layout = self.notes(_layout(tensors) if self.leads else None)[0]
        flat = (
            _flat([tensors], device) if self.leads else torch.empty(_length(layout), dtype=torch.uint8, device=device)
        )
        dist.broadcast(flat, src=0)
        return tensors if self.leads else _unpacked(flat, [layout])[0]

    def agreed(self, work: Callable[[], T]) -> T:
        """Do something; what is wrong at one rank is raised by all of them, so that nobody waits for it."""
        result: T | None = None
        said = None
        try:
            result = work()
        except FedExpertsError as error:
            said = [type(error).__name__, str(error)]
        for wrong in self.notes(said):
            if wrong is not None:
                raise getattr(errors, wrong[0], FedExpertsError)(wrong[1])
        return result  # type: ignore[return-value]  # without an error there is one


def not_one_each(gpus: Sequence[str | None]) -> str:
    """What is wrong with the GPUs that processes have, if each must have one of its own, or none any."""
    there = set(gpus) - {None}
    if not there or (None not in gpus and len(there) == len(gpus)):
        return ""
    some = f"{len(there)} GPU{'s' * (len(there) > 1)} between them, and each needs one of its own"
    without = f" ({gpus.count(None)} see none)" * (None in gpus)
    return f"{len(gpus)} processes have {some}{without}"


@cache
def started() -> Ranks | None:
    """The processes that torchrun has started this one with; None where it is alone."""
    if torchrun.size() == 1:
        return None
    if torch.cuda.is_available():
        # More processes than GPUs may do a run on CPUs, or each of them sees one GPU only; `check_devices` knows.
        torch.cuda.set_device(torchrun.local_rank() % torch.cuda.device_count())
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
        atexit.register(dist.destroy_process_group)
    return Ranks()


def led(work: Callable[[], T]) -> T:
    """What the leader finds or does, for everybody; of JSON's kinds. One process alone is its own leader."""
    if (ranks := started()) is None:
        return work()
    found: T = ranks.notes(ranks.agreed(lambda: work() if ranks.leads else None))[0]
    return found


def divided(work: Mapping[int, float], among: int) -> dict[int, int]:
    """Clients over ranks: the largest first, each to the rank that has least to do, so that all finish together."""
    loads = [0.0] * among
    found = {}
    for client in sorted(work, key=lambda k: (-work[k], k)):
        found[client] = loads.index(min(loads))
        loads[found[client]] += work[client]
    return found


Layout = list[list[Any]]
"""Name, type and shape of each tensor, as JSON has them."""


def _layout(tensors: Mapping[str, Tensor]) -> Layout:
    return [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()]


def _length(layout: Layout) -> int:
    return sum(_room(*entry[1:]) for entry in layout)


def _room(dtype: str, shape: Sequence[int]) -> int:
    """The bytes of a tensor, with what fills them up."""
    return -(-_bytes(dtype, shape) // ALIGNED) * ALIGNED


def _bytes(dtype: str, shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel()) * torch.empty(0, dtype=getattr(torch, dtype)).element_size()


def _flat(states: Sequence[Mapping[str, Tensor]], device: torch.device) -> Tensor:
    """All tensors as bytes, one after another."""
    flat = torch.zeros(sum(_length(_layout(state)) for state in states), dtype=torch.uint8, device=device)
    at = 0
    for state in states:
        for (_, dtype, shape), tensor in zip(_layout(state), state.values(), strict=True):
            raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            flat[at : at + len(raw)].copy_(raw)
            at += _room(dtype, shape)
    return flat


def _unpacked(flat: Tensor, layouts: Sequence[Layout]) -> list[State]:
    """The tensors again, where the bytes lie."""
    found: list[State] = []
    at = 0
    for layout in layouts:
        state: State = {}
        for name, dtype, shape in layout:
            state[name] = flat[at : at + _bytes(dtype, shape)].view(getattr(torch, dtype)).reshape(shape)
            at += _room(dtype, shape)
        found.append(state)
    return found


def _all(tensor: Tensor) -> list[Tensor]:
    """Everybody's tensor, of the same shape at all ranks."""
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor)
    return found


def _uneven(flat: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Everybody's bytes, of which there are not equally many."""
    if not max(lengths):
        return [flat] * len(lengths)
    padded = flat.new_zeros(max(lengths))
    padded[: len(flat)] = flat
    return [raw[:length] for raw, length in zip(_all(padded), lengths, strict=True)]
