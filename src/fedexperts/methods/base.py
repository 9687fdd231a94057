"""What a method is. The default is FedAvg; every other method holds only its difference from it.

A method says of which parts a client's model is made and who owns each, how a client trains (stages), what leaves the
client, and what the server does with it. All of it is pure: a method object holds settings, never a client's or the
server's state, so the same file runs stacked on a GPU, on a laptop, and as a federation over a network.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen, TrainSettings
from fedexperts.methods.message import Channel, Message, Owner, State, part_of, select
from fedexperts.models import Parts, build
from fedexperts.task import ClientSpec


class Batch(NamedTuple):
    """One client's samples in a step."""

    x: Tensor
    y: Tensor


class Model(nn.Module):
    """A client's parts under their names: `model.extractor(x)`. Calls a function with itself, for `functional_call`."""

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self, *args)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


Loss = Callable[[Model, Batch, State], Tensor]
"""(model, batch, what was received this round) → one number to go down."""


@dataclass(frozen=True)
class Stage:
    """A stretch of local training: only `parts` move (buffers too: all others are in evaluation mode)."""

    parts: tuple[str, ...]
    loss: Loss
    epochs: int
    rates: Mapping[str, float] = field(default_factory=dict)  # part → learning rate, where it has its own

    def moving(self, parameters: Sequence[str]) -> list[str]:
        """Those of a model's parameters that this stage trains."""
        return [name for name in parameters if part_of(name) in self.parts]


@dataclass(frozen=True)
class Reply:
    """What the server got from one client."""

    client: int
    message: Message


class Method:
    """FedAvg, and the base of all others."""

    name: ClassVar[str]
    title: ClassVar[str] = ""
    """How people write it: "FedMoE"."""
    source: ClassVar[str] = ""
    """The paper."""
    owners: ClassVar[Mapping[str, Owner]] = {"extractor": Owner.SHARED, "head": Owner.SHARED}

    class Options(Frozen):
        """The method's own settings; each is an option of the command line by itself."""

    options: Frozen

    def __init__(self, train: TrainSettings | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.train = train or TrainSettings.check({})
        self.options = self.Options.check(options or {})

    # --- a client's model and how it trains

    def parts(self, client: ClientSpec) -> Parts:
        """The client's model as named parts, freshly initialised."""
        return build(client.model, client.shape, client.classes)

    def predict(self, model: Model, x: Tensor) -> Tensor:
        """Logits."""
        return cast(Tensor, model.head(model.extractor(x)))

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        return F.cross_entropy(self.predict(model, batch.x), batch.y)

    def stages(self) -> Sequence[Stage]:
        """Local training of one round, in order."""
        return [Stage(tuple(self.owners), self.loss, self.train.epochs)]

    # --- messages

    def start(self, model: Model) -> State:
        """The server's state before the first round, from a fresh model."""
        return select(model.state_dict(), self.owned(Owner.SHARED))

    def send(self, server: State, client: ClientSpec) -> Message:
        """Server → client at the start of a round."""
        return Message(server)

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        """Which of the client's tensors become what; the rest of the message reaches the loss as `received`."""
        return {name: tensor for name, tensor in message.tensors.items() if name in own}

    def reply(self, own: Mapping[str, Tensor], received: State, client: ClientSpec) -> Message:
        """Client → server after training."""
        shared = select(own, self.owned(Owner.SHARED))
        return Message(shared, {"samples": client.samples}) if shared else Message()

    def combine(self, server: State, replies: Sequence[Reply]) -> State:
        """The server's next state."""
        return weighted_mean(replies) if replies else server

    # --- between rounds

    def kept(self) -> set[str]:
        """Parts that a client keeps from one round to its next one; all others come anew from the server."""
        return self.owned(Owner.PRIVATE, Owner.PEER)

    def personalise(self, own: Mapping[str, Tensor], message: Message) -> State:
        """The client's model as it is used and evaluated, given what the server would send now."""
        return self.receive(own, message)

    # --- who owns what

    def owned(self, *owners: Owner) -> set[str]:
        """The parts of these owners."""
        return {part for part, owner in self.owners.items() if owner in owners}

    def forbidden(self, channel: Channel) -> set[str]:
        """The parts that must not appear in a message of this channel."""
        open_to = {Channel.UP: Owner.SHARED, Channel.DOWN: Owner.SHARED, Channel.PEER: Owner.PEER}[channel]
        return {part for part, owner in self.owners.items() if owner is not open_to}


def weighted_mean(replies: Sequence[Reply]) -> State:
    """Σ n_k/n w_k over the replies.

    Buffers are averaged like weights; whole numbers (BatchNorm's counters) become the largest.
    """
    samples = torch.tensor([reply.message.numbers["samples"] for reply in replies], dtype=torch.float64)
    shares = samples / samples.sum()
    state = {}
    for name, first in replies[0].message.tensors.items():
        stacked = torch.stack([reply.message.tensors[name] for reply in replies])
        if first.is_floating_point():
            shares = _queued(shares, stacked)
            state[name] = torch.tensordot(shares, stacked, dims=1)
        else:
            state[name] = stacked.amax(0)
    return state


def _queued(values: Tensor, like: Tensor) -> Tensor:
    """Bring a few values to where another tensor is, without waiting for the work that is queued there."""
    if values.device == like.device:
        return values.to(like.dtype)
    return values.pin_memory().to(like, non_blocking=True) if like.is_cuda else values.to(like)


__all__ = [
    "Batch",
    "Channel",
    "Loss",
    "Message",
    "Method",
    "Model",
    "Owner",
    "Reply",
    "Stage",
    "State",
    "part_of",
    "select",
]
