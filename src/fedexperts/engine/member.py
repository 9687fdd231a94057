"""What the server and the clients of a run have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fedexperts.config import Settings
from fedexperts.engine.observer import Observer
from fedexperts.errors import ModelError, PrivacyError
from fedexperts.methods import Channel, Message, Method, Model, Round, State, part_of, select
from fedexperts.models import ModelRef
from fedexperts.randomness import SERVER, torch_stream
from fedexperts.task import ClientSpec

NUMBERS = 8
"""A few numbers may go with a message's tensors, no more: tensors are what is counted and checked by name."""


class Member:
    """One side of a run: its method and settings, the clients that it knows, and the gate that its messages pass."""

    def __init__(
        self,
        method: Method,
        specs: Mapping[int, ClientSpec],
        settings: Settings,
        start: State,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`start`: what the server has before the first round."""
        self.method = method
        self.specs = specs
        self.settings = settings
        self.observers = observers
        self.dtype = _dtype(settings)
        self.round = 0  # complete rounds
        self.start = start

    def now(self, number: int) -> Round:
        """A round of this run."""
        clients = next(iter(self.specs.values())).clients
        return Round(number, self.settings.rounds, self.settings.seed, clients)

    @property
    def sample_size(self) -> int:
        """K = C·N: how many are in a round."""
        return max(1, round(self.settings.participation * len(self.specs)))

    def passes(self, now: int, channel: Channel, client: ClientSpec, message: Message) -> None:
        """Every message of a run comes by here."""
        if not message:
            return
        self.check(channel, client, message)
        for observer in self.observers:
            observer.message(now, channel, client.id, message)

    def check(self, channel: Channel, client: ClientSpec, message: Message) -> None:
        """Refuse what may not go this way."""
        if len(message.numbers) > NUMBERS:
            raise PrivacyError(
                f"method '{self.method.name}' sends {len(message.numbers)} numbers where at most {NUMBERS} may go"
            )
        private = self.method.forbidden(channel) & {part_of(name) for name in (*message.tensors, *message.known)}
        if private:
            raise PrivacyError(
                f"method '{self.method.name}' put {sorted(private)} into a message '{channel}' of {client.called}, "
                f"but {', '.join(f'{p} is {self.method.owners[p]}' for p in sorted(private))}"
            )


def model_of(method: Method, spec: ClientSpec, dtype: torch.dtype) -> Model:
    """A client's model, freshly initialised."""
    return Model(method.parts(spec)).to(dtype)


def drawn(method: Method, first: Sequence[ClientSpec], settings: Settings) -> State:
    """What the server begins with, from the run's seed; `first`: of each model the first client that has it."""
    with torch_stream(settings.seed, "init", SERVER):
        return method.start_of(model_of(method, spec, _dtype(settings)) for spec in first)


def _dtype(settings: Settings) -> torch.dtype:
    return torch.float64 if settings.precision == "float64" else torch.float32


def first_of_each(specs: Sequence[ClientSpec]) -> list[ClientSpec]:
    """Of each model the first client that has it."""
    kinds = {spec.model: spec for spec in reversed(specs)}
    return sorted(kinds.values(), key=lambda spec: spec.id)


def fitting(method: Method, own: Sequence[ClientSpec], common_model: ModelRef) -> tuple[list[ClientSpec], str]:
    """The clients as the method can have them: each with its own model if the parts that must be alike then are.

    Otherwise all run the common model, and the second result says so.
    """
    shared = {}
    for spec in own:
        if spec.model in shared:
            continue
        try:
            with torch.device("meta"):
                parts = select(Model(method.parts(spec)).state_dict(), method.alike())
        except ModelError as error:
            raise ModelError(f"{spec.called}: {error}") from None
        shared[spec.model] = {name: tuple(tensor.shape) for name, tensor in parts.items()}
    first, *others = shared.values()
    if all(first == other for other in others):
        return list(own), ""
    note = f"{method.name} needs one model for all clients: all run {common_model}"
    return [replace(spec, model=common_model) for spec in own], note
