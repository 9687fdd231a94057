"""Nothing that comes from a site is trusted: what a reply must look like, and what is refused.

What it must look like nobody has to say: the server lets the method itself reply for a client that has the site's model
and made-up data. Twice, once with samples of all classes and once of one, which shows the sizes that depend on data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedexperts.config import Frozen, Settings
from fedexperts.data import ClientData, Dataset
from fedexperts.data.words import UNKNOWN, Vocabulary
from fedexperts.engine.clients import Clients
from fedexperts.errors import FederationError
from fedexperts.methods import Message, Method, Round, State, Want
from fedexperts.task import ClientSpec

SLACK = 65_536
"""Bytes that a message may have beyond what is expected of it."""


class StandIn(Clients):
    """A client at the server with a site's model and data of nobody; it replies as it is, without training."""

    def __init__(self, method: Method, spec: ClientSpec, settings: Settings, first: ClientSpec, every: bool) -> None:
        """`every`: whether it has samples of all classes, or of one."""
        labels = np.arange(spec.classes) if every else np.zeros(spec.classes, np.int64)
        counts = np.bincount(labels, minlength=spec.classes) * (spec.samples // spec.classes + 1)
        here = {"device": "cpu", "executor": "loop", "store": "memory", "group_size": None}
        super().__init__(
            method,
            {spec.id: replace(spec, label_counts=tuple(counts.tolist()))},
            Settings.check(settings.model_dump() | here),
            _made_up(spec.shape, labels, spec.classes),
            lambda number: {spec.id: ClientData(*(np.arange(spec.classes),) * 3)},
            first=first,
        )
        self.client = spec.id
        self.message = Message()

    def send(self, client: int, now: Round) -> Message:
        return self.message

    def fetch(self, client: int, wants: Sequence[Want], now: Round) -> Mapping[Want, Message]:
        return {}

    def replies(self, message: Message, now: Round) -> Message:
        """What it would say after such a message."""
        self.message = message
        [[cohort]] = self.fleet.waves([self.client])
        found = self._replies(self._job(cohort, now), now)
        return found[0].message if found else Message()


def _made_up(shape: tuple[int, ...], labels: np.ndarray, classes: int) -> Dataset:
    names = tuple(map(str, range(classes)))
    if len(shape) == 3:
        return Dataset("nobody's", np.zeros((len(labels), *shape), np.uint8), labels, names)
    length, numbers = shape
    words = Vocabulary(tuple(map(str, range(numbers - UNKNOWN - 1))))
    return Dataset("nobody's", np.zeros((len(labels), length), np.int32), labels, names, vocabulary=words)


@dataclass(frozen=True)
class Expected:
    """Two replies that would be right."""

    most: Message
    least: Message

    def check(self, name: str, tensor: Tensor) -> None:
        most, least = self.most.tensors[name], self.least.tensors.get(name, self.most.tensors[name])
        sizes = zip(tensor.shape, least.shape, most.shape, strict=False)
        within = tensor.dim() == most.dim() and all(low <= size <= high for size, low, high in sizes)
        if not within or tensor.dtype != most.dtype:
            raise FederationError(f"{name} is {_kind(tensor)} where {_kind(most)} is expected")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


class Limits(Frozen):
    """How far a reply may go."""

    change: float = 10.0  # ‖reply − server's‖ in multiples of ‖server's‖, or of 1 where that is less


class Inspector:
    """Looks at every reply of a run before it is combined."""

    def __init__(
        self, method: Method, specs: Mapping[int, ClientSpec], settings: Settings, first: ClientSpec, limits: Limits
    ) -> None:
        self.limits = limits
        self.specs = specs
        self._stand_ins = {
            client: [StandIn(method, spec, settings, first, every) for every in (True, False)]
            for client, spec in specs.items()
        }

    def opened(self, client: int, raw: bytes, sent: Message, server: State, now: Round) -> Message:
        """The message in a reply, if nothing is wrong with it."""
        expected = Expected(*(stand_in.replies(sent, now) for stand_in in self._stand_ins[client]))
        most = expected.most.wire_bytes + SLACK
        if len(raw) > most:
            raise FederationError(f"a reply of {len(raw):,} bytes where at most {most:,} are expected")
        message = Message.from_bytes(raw) if raw else Message()
        self._names(expected, message)
        for name, tensor in message.tensors.items():
            expected.check(name, tensor)
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise FederationError(f"{name} has values that are no numbers")
        self._numbers(client, expected, message)
        self._change(message, server)
        return message

    def _names(self, expected: Expected, message: Message) -> None:
        for kind in ("tensors", "numbers"):
            may, must = getattr(expected.most, kind).keys(), getattr(expected.least, kind).keys()
            has = getattr(message, kind).keys()
            if unknown := sorted(has - may):
                raise FederationError(f"nobody asked for {', '.join(unknown)[:200]}")
            if missing := sorted((may & must) - has):
                raise FederationError(f"it lacks {', '.join(missing)[:200]}")

    def _numbers(self, client: int, expected: Expected, message: Message) -> None:
        if odd := sorted(name for name, x in message.numbers.items() if not np.isfinite(x)):
            raise FederationError(f"the number {odd[0]} is {message.numbers[odd[0]]}")
        samples = message.numbers.get("samples")
        if samples is not None and samples != self.specs[client].samples:
            raise FederationError(f"it says {samples:g} samples where it announced {self.specs[client].samples}")

    def _change(self, message: Message, server: State) -> None:
        """Of what both have, as one long vector."""
        both = [name for name, t in message.tensors.items() if name in server and server[name].shape == t.shape]
        changes = [(message.tensors[name] - server[name]).double().norm() for name in both]
        norms = [server[name].double().norm() for name in both]
        if not both:
            return
        change, norm = (float(torch.stack(parts).norm()) for parts in (changes, norms))
        if change > self.limits.change * max(norm, 1.0):
            raise FederationError(
                f"its change has norm {change:.3g}, more than {self.limits.change:g} times that of what it was sent "
                f"({norm:.3g})"
            )
