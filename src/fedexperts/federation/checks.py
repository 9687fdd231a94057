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
from fedexperts.errors import FederationError, FedExpertsError
from fedexperts.methods import Message, Method, Reply, Round, State, Want, part_of
from fedexperts.task import ClientSpec

SLACK = 65_536
"""Bytes that a message may have beyond what is expected of it."""


class StandIn(Clients):
    """A client at the server with a site's model and data of nobody; it replies as it is, without training."""

    def __init__(self, method: Method, spec: ClientSpec, settings: Settings, start: State, every: bool) -> None:
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
            start=start,
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
        return self.rehearse(self.client, now)


def _made_up(shape: tuple[int, ...], labels: np.ndarray, classes: int) -> Dataset:
    names = tuple(map(str, range(classes)))
    if len(shape) == 1:  # a table's row
        return Dataset("nobody's", np.zeros((len(labels), *shape), np.float32), labels, names)
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
    withheld: set[str]  # parts that need not be there

    def differs(self, message: Message) -> str:
        """What of the tensors is not as expected, if anything."""
        may, must, has = self.most.tensors.keys(), self.least.tensors.keys(), message.tensors.keys()
        if unknown := sorted(has - may):
            return f"nobody asked for {', '.join(unknown)[:200]}"
        if missing := sorted(name for name in (may & must) - has if part_of(name) not in self.withheld):
            return f"it lacks {', '.join(missing)[:200]}"
        for name, tensor in message.tensors.items():
            most, least = self.most.tensors[name], self.least.tensors.get(name, self.most.tensors[name])
            sizes = zip(tensor.shape, least.shape, most.shape, strict=False)
            within = tensor.dim() == most.dim() and all(low <= size <= high for size, low, high in sizes)
            if not within or tensor.dtype != most.dtype:
                return f"{name} is {kind_of(tensor)} where {kind_of(most)} is expected"
        return ""


def kind_of(tensor: Tensor) -> str:
    """A tensor's type and shape, in words."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


class Limits(Frozen):
    """How far a reply may go."""

    change: float = 10.0  # ‖reply − server's‖ in multiples of ‖server's‖, or of 1 where that is less
    value: float = 1e6  # of any one number in a tensor


def check_values(message: Message, limits: Limits) -> None:
    """An error where some of it are no numbers, or far too large ones."""
    for name, tensor in message.tensors.items():
        if tensor.is_floating_point() and not (tensor.abs() <= limits.value).all():  # NaN is never less
            raise FederationError(f"{name} has values that are no numbers, or beyond ±{limits.value:g}")
    if odd := sorted(name for name, x in message.numbers.items() if not np.isfinite(x)):
        raise FederationError(f"the number {odd[0]} is {message.numbers[odd[0]]}")


class Inspector:
    """Looks at every reply of a run before it is combined."""

    def __init__(
        self,
        method: Method,
        specs: Mapping[int, ClientSpec],
        settings: Settings,
        start: State,
        limits: Limits,
    ) -> None:
        self.method = method
        self.limits = limits
        self.specs = specs
        self.unusual: set[int] = set()  # whose replies are laid out otherwise than expected, but can be combined
        self._stand_ins = {
            client: [StandIn(method, spec, settings, start, every) for every in (True, False)]
            for client, spec in specs.items()
        }

    def opened(self, client: int, raw: bytes, sent: Message, server: State, now: Round) -> Message:
        """The message in a reply, if nothing is wrong with it."""
        most, least = (stand_in.replies(sent, now) for stand_in in self._stand_ins[client])
        expected = Expected(most, least, self.method.withheld)
        room = max(most.wire_bytes, sent.wire_bytes) + SLACK
        if len(raw) > room:
            raise FederationError(f"a reply of {len(raw):,} bytes where at most {room:,} are expected")
        message = Message.from_bytes(raw) if raw else Message()
        if message.numbers.keys() != most.numbers.keys():
            asked, sent_numbers = (", ".join(sorted(m.numbers)) or "none" for m in (most, message))
            raise FederationError(f"its numbers are {sent_numbers[:200]} where {asked} are expected")
        self._values(client, message)
        if differs := expected.differs(message):
            self._change(self._tried(Reply(client, message), server, now, differs), server)
            self.unusual.add(client)
        else:
            self._change(message.tensors, server)
        return message

    def _values(self, client: int, message: Message) -> None:
        check_values(message, self.limits)
        samples = message.numbers.get("samples")
        if samples is not None and samples != self.specs[client].samples:
            raise FederationError(f"it says {samples:g} samples where it announced {self.specs[client].samples}")

    def _tried(self, reply: Reply, server: State, now: Round, differs: str) -> State:
        """The state that such a reply would make alone.

        Of some methods a reply's layout depends on what training came to (FedKD's ranks). It is right if the server can
        make a state of it that is laid out as its present one.
        """
        try:
            state = self.method.combine({name: tensor.clone() for name, tensor in server.items()}, [reply], now)
        except (FedExpertsError, RuntimeError, ValueError, LookupError, TypeError) as error:
            raise FederationError(f"{differs}, and it cannot be combined") from error
        kept = all(name in state and state[name].dtype == tensor.dtype for name, tensor in server.items())
        alike = kept and all(state[n].shape == server[n].shape for n in reply.message.tensors if n in server)
        numbers = all(tensor.isfinite().all() for tensor in state.values())
        if not (alike and numbers and state.keys() == server.keys()):
            raise FederationError(differs)
        return state

    def _change(self, found: Mapping[str, Tensor], server: State) -> None:
        """Of what both have, as one long vector."""
        both = [n for n, t in found.items() if n in server and t.is_floating_point() and server[n].shape == t.shape]
        if not both:
            return
        changes = torch.stack([(found[name] - server[name]).double().norm() for name in both])
        norms = torch.stack([server[name].double().norm() for name in both])
        change, norm = float(changes.norm()), float(norms.norm())
        if change > self.limits.change * max(norm, 1.0):
            raise FederationError(
                f"its change has norm {change:.3g}, more than {self.limits.change:g} times that of what it was sent "
                f"({norm:.3g})"
            )
