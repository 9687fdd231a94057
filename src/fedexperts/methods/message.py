"""What crosses a boundary, and who owns what. Messages are the only way out of a client and of the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedexperts.errors import MethodError

State = dict[str, Tensor]
"""Named tensors; the name's first word is the part that they belong to: `extractor.conv1.weight`."""


class Owner(StrEnum):
    """Who owns a part, and so where it may go."""

    SHARED = "shared"  # the server combines it
    PRIVATE = "private"  # it never leaves the client
    PEER = "peer"  # other clients may fetch it, the server never sees it


class Channel(StrEnum):
    """The ways that a message can go."""

    DOWN = "down"  # server to client
    UP = "up"  # client to server
    PEER = "peer"  # client to client


def part_of(name: str) -> str:
    """The part that a tensor belongs to."""
    return name.partition(".")[0]


def select(tensors: Mapping[str, Tensor], parts: set[str]) -> State:
    """The tensors of some parts."""
    return {name: tensors[name] for name in tensors if part_of(name) in parts}


def under(tensors: Mapping[str, Tensor], place: str) -> State:
    """The tensors of a part, or of something within one: `experts.2`."""
    return {name: tensors[name] for name in tensors if name.startswith(f"{place}.")}


def inside(tensors: Mapping[str, Tensor], place: str) -> State:
    """The same under the names that they have there."""
    return {name.removeprefix(f"{place}."): tensor for name, tensor in under(tensors, place).items()}


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors in the safetensors format. One that stands under two names is written twice, as if it were two."""
    found: State = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        whole = tensor.detach().cpu().contiguous()
        found[name] = whole.clone() if whole.data_ptr() in places else whole
        places.add(whole.data_ptr())
    return safetensors.torch.save(found)


@dataclass(frozen=True)
class Message:
    """Named tensors and a few numbers. A message with neither is not sent."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    known: Mapping[str, Tensor] = field(default_factory=dict)
    """What the receiver still has from an earlier message: of that only the names travel. A receiver keeps what is not

    part of its own model as it last came.
    """

    def __bool__(self) -> bool:
        return bool(self.tensors or self.numbers)

    def to(self, device: torch.device) -> "Message":
        """The same message, where its receiver is."""
        tensors, known = ({n: t.to(device) for n, t in part.items()} for part in (self.tensors, self.known))
        return Message(tensors, self.numbers, known)

    @property
    def parameters(self) -> int:
        """How many values travel in tensors."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensors alone, as papers count them."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    @property
    def wire_bytes(self) -> int:
        """Bytes on the wire: exactly `len(self.to_bytes())`, without making them."""
        if not self:
            return 0
        layout = tuple((name, tuple(t.shape), t.dtype) for name, t in self.tensors.items())
        return self.payload_bytes + _overhead(layout, tuple(self.numbers), tuple(self.known))

    def to_bytes(self) -> bytes:
        """The message in the safetensors format; numbers are tensors of one value, known names tensors of none."""
        numbers = {_NUMBER + name: _number(x) for name, x in self.numbers.items()}
        return pack({**self.tensors, **numbers, **{_KNOWN + name: torch.empty(0) for name in self.known}})

    @classmethod
    def from_bytes(cls, raw: bytes, memory: Mapping[str, Tensor] | None = None) -> "Message":
        """`memory`: what the receiver still has. Whatever the bytes are, they are a message or a `MethodError`."""
        try:
            tensors = dict(sorted(safetensors.torch.load(raw).items()))  # the format itself keeps no order
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
            raise MethodError(f"{len(raw)} bytes are not a message: {error}") from None
        numbers, named = (
            {name.removeprefix(mark): tensors.pop(name) for name in list(tensors) if name.startswith(mark)}
            for mark in (_NUMBER, _KNOWN)
        )
        if odd := sorted(name for name, x in numbers.items() if x.dtype != torch.float64 or x.shape != (1,)):
            raise MethodError(f"the numbers {', '.join(odd)} of a message are not float64 of one value")
        if lost := sorted(named.keys() - (memory or {}).keys()):
            raise MethodError(f"a message says that {', '.join(lost)} came before, but the receiver does not have it")
        known = {name: (memory or {})[name] for name in named}
        return cls(tensors, {name: x.item() for name, x in numbers.items()}, known)


_NUMBER, _KNOWN = "#", "="


def _number(x: float) -> Tensor:
    return torch.tensor([x], dtype=torch.float64)


@lru_cache(maxsize=4096)
def _overhead(
    layout: tuple[tuple[str, tuple[int, ...], torch.dtype], ...], numbers: tuple[str, ...], known: tuple[str, ...]
) -> int:
    """Bytes of a message beyond its tensors: header and numbers. Depends on names and shapes only."""
    probe = Message(
        {name: torch.zeros(shape, dtype=dtype) for name, shape, dtype in layout},
        dict.fromkeys(numbers, 0.0),
        dict.fromkeys(known, torch.empty(0)),
    )
    return len(probe.to_bytes()) - probe.payload_bytes
