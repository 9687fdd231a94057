"""How many clients the device has room for at a time: an estimate before they train, from one client's step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedexperts.engine.program import Program
from fedexperts.methods import Method, Owner, part_of

USED = 0.8
"""Of what is free so much may be used: allocators lose some between tensors, and others may want some too."""
BESIDE = 1.25
"""What a step takes, over what is kept for its backward pass: results on their way."""


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be had; None where nobody says."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        allowed = int(total * torch.cuda.get_per_process_memory_fraction(device))
        return min(free + held, allowed) - torch.cuda.memory_allocated(device)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


@contextmanager
def kept_for_backward(beside: Mapping[str, Tensor]) -> Iterator[Callable[[], int]]:
    """Within it, how many bytes autograd keeps for backward passes, `beside` some tensors that are there anyway."""
    known = {tensor.untyped_storage().data_ptr() for tensor in beside.values()}
    found: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield lambda: sum(found.values())


class Need(NamedTuple):
    """Bytes of a client: while it is on the device, of what it has sent until the round ends, and what it keeps."""

    present: int
    sent: int
    kept: int = 0

    @classmethod
    def of(cls, method: Method, program: Program, step: int) -> "Need":
        """`step`: what a step of one more client takes beside its tensors."""
        sizes = {name: dtype.itemsize * torch.Size(shape).numel() for name, (shape, dtype) in program.layout.items()}
        sent, kept = (
            sum(size for name, size in sizes.items() if part_of(name) in parts)
            for parts in (method.owned(Owner.SHARED), method.kept())
        )
        return cls(sum(sizes.values()) + kept + step, sent, kept)  # what it keeps is there twice until it has trained


def split(needs: Sequence[tuple[Need, int]], free: int) -> tuple[int | None, str]:
    """How many clients may be present at a time, if not all, given what each kind needs and how many there are of it.

    With it, what is to be said about that.
    """
    clients = sum(count for _, count in needs)
    together = sum(need.present * count for need, count in needs)
    left = USED * free - sum(need.sent * count for need, count in needs)
    if together <= left:
        return None, ""
    fitting = max(1, int(clients * left / together))
    note = (
        f"{clients} clients at once would need about {together / 1e9:.2g} GB, {free / 1e9:.2g} GB were free: "
        f"{fitting} at a time"
    )
    return fitting, note
