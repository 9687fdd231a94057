"""What a method is. The default is FedAvg; every other method holds only its difference from it.

A method says of which parts a client's model is made and who owns each, how a client trains (stages), what leaves the
client, and what the server does with it. All of it is pure: a method object holds settings, never a client's or the
server's state, so the same file runs stacked on a GPU, on a laptop, and as a federation over a network.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen, Settings, TrainSettings
from fedexperts.errors import MethodError
from fedexperts.methods.message import Channel, Message, Owner, State, part_of, select, under
from fedexperts.models import Parts, build
from fedexperts.randomness import stream
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
    """A stretch of local training: only `parts` move (buffers too: all others are in evaluation mode).

    The loss is a function of its arguments alone; values that change from round to round belong into a message.
    """

    parts: tuple[str, ...]
    loss: Loss
    epochs: int
    rates: Mapping[str, float] = field(default_factory=dict)  # part → learning rate, where it has its own
    share: tuple[float, float] = (0.0, 1.0)  # from where to where of the client's training data, in an order that stays
    samples: int | None = None  # at most about so many in an epoch, in whole batches: others each time
    copies: Mapping[str, str] = field(default_factory=dict)  # part → the part that it becomes a copy of, before all
    plain: bool = False  # steps of plain SGD, whatever the clients' optimiser: for what is not a model's weights

    @property
    def identity(self) -> Hashable:
        """Equal for two stages that do the same; a loss is known by its name."""
        return self.parts, tuple(self.rates.items()), getattr(self.loss, "__qualname__", self.loss), self.plain

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Make the copies, in a client's tensors or in a stack of them."""
        for part, source in self.copies.items():
            for name in select(tensors, {source}):
                tensors[part + name.removeprefix(source)].copy_(tensors[name])

    def moving(self, parameters: Sequence[str]) -> list[str]:
        """Those of a model's parameters that this stage trains."""
        return [name for name in parameters if part_of(name) in self.parts]


@dataclass(frozen=True)
class Round:
    """When it is: round `number` of `total`, from 1."""

    number: int
    total: int
    seed: int
    clients: int = 0  # N: all there are, sampled or not

    def stream(self, purpose: str, *where: int) -> np.random.Generator:
        """Random numbers of the round for a purpose of the method's own, at a place (a client's number)."""
        return stream(self.seed, purpose, *where, self.number)


class Want(NamedTuple):
    """What a client asks of a peer: all tensors whose names begin so."""

    peer: int
    what: str  # "experts.2"


class Beginning(NamedTuple):
    """A run that comes before: in a folder where it is finished, or still to be made."""

    method: str
    values: Mapping[str, Any]  # its settings and options, where they are not those of the run that follows
    folder: Path | None


class Table(NamedTuple):
    """Numbers for a file."""

    header: Sequence[str]
    rows: Sequence[Sequence[float]]


class ByClass(NamedTuple):
    """A client's training data, class by class."""

    counts: Tensor  # classes: how many samples
    means: Tensor  # classes × width: the mean of their rows; zero where there are none
    own: Tensor  # the classes of which there are samples: to find them in `counts` would be to wait for a device


NOTHING = ByClass(torch.empty(0), torch.empty(0, 0), torch.empty(0, dtype=torch.int64))


@dataclass(frozen=True)
class Trained:
    """A client after its local training in a round."""

    client: ClientSpec
    own: Mapping[str, Tensor]  # all its tensors
    received: State  # what the server sent it this round
    by_class: ByClass = NOTHING  # what `collect` found in its training data
    x: Tensor = NOTHING.counts  # when it adopts: some of its training samples, as many as the method `revisits`


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
    """Where it is from: "authors year: title"."""
    owners: Mapping[str, Owner] = {"extractor": Owner.SHARED, "head": Owner.SHARED}
    personal: ClassVar[str] = ""
    """The part that makes a client's model its own, if there is one: PM-MoE pools it. `predict` calls it, no more."""
    deducible: ClassVar[bool] = False
    """Whether the server can work out the personal part from what it sends and gets, though it is private."""

    class Options(Frozen):
        """The method's own settings; each is an option of the command line by itself."""

    options: Frozen

    goes_on_from: ClassVar[str] = ""
    """The setting, if there is one, that names the folder of a run: this one goes on with its task and its models."""

    beforehand: ClassVar[int] = 0
    """Rounds at the beginning that show what a run goes on from: its figures are of those after them."""

    @classmethod
    def arranged(cls, values: Mapping[str, Any], saved: Callable[[Path], Settings]) -> dict[str, Any]:
        """What a user gives, by name, as the settings and options of this method's own run.

        `saved` has the settings of the run in a folder.
        """
        return dict(values)

    def begins(self) -> Beginning | None:
        """The run whose end is this one's beginning, if it is not a fresh one."""
        return None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):  # a method's title is not its parent's
            cls.title = vars(cls).get("title", cls.name)
            cls.source = vars(cls).get("source", "unpublished")

    def __init__(self, train: TrainSettings | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.train = train or TrainSettings.check({})
        self.options = self.Options.check(options or {})

    @classmethod
    def completed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Its own settings as a run once saved them; one that there was not yet has the value that it has by itself."""
        return cls.Options.model_construct().model_dump(mode="json", exclude_none=True) | dict(options)

    def in_use(self) -> dict[str, Any]:
        """Its own settings for a model that is finished: what it began with (a folder) is not needed any more."""
        values = self.options.model_dump(mode="json", exclude_none=True)
        return {name: value for name, value in values.items() if not isinstance(getattr(self.options, name), Path)}

    # --- a client's model and how it trains

    def parts(self, client: ClientSpec) -> Parts:
        """The client's model as named parts, freshly initialised."""
        return build(client.model, client.shape, client.classes)

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        """The features that the prediction is made of: samples × width."""
        return cast(Tensor, model.extractor(x))

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        """Logits; `received` is what the server sent, or would send now."""
        return cast(Tensor, model.head(self.represent(model, x, received)))

    @property
    def experts(self) -> Sequence[str]:
        """What `weigh` weighs, if anything: "global", "local"."""
        return ()

    def weigh(self, model: Model, x: Tensor, received: State) -> Tensor:
        """How much each expert counts: samples × `experts`, rows that sum to 1. Only where `experts` are named."""
        raise MethodError(f"method '{self.name}' has no experts that it weighs")

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        return F.cross_entropy(self.predict(model, batch.x, received), batch.y)

    @property
    def collects(self) -> bool:
        return type(self).collect is not Method.collect

    def collect(self, model: Model, x: Tensor, received: State) -> Tensor:
        """A row for each sample, if the client's training data are to be looked at once more after its training.

        The rows' means by class are `by_class` of what `finish` and `reply` get.
        """
        raise NotImplementedError

    def stages(self, now: Round) -> Sequence[Stage]:
        """Local training of one round, in order."""
        return [Stage(tuple(self.owners), self.loss, self.train.epochs)]

    # --- messages

    def heard(self, message: Message) -> State:
        """What of the server's message reaches losses and predictions, as `received`; `receive` gets all of it.

        The clients that train together must all have it.
        """
        return {**message.tensors, **message.known}

    def start(self, model: Model) -> State:
        """The server's state before the first round, from a fresh model."""
        return select(model.state_dict(), self.owned(Owner.SHARED))

    def start_of(self, models: Iterable[Model]) -> State:
        """The same, where clients have models of different shapes: a fresh one of each, the first client's first."""
        return self.start(next(iter(models)))

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        """Server → client at the start of a round."""
        return Message(server)

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        """Which of the client's tensors become what."""
        return {name: tensor for name, tensor in message.tensors.items() if name in own}

    def finish(self, after: Trained, now: Round) -> State:
        """Which of the client's tensors become what after training, before it replies."""
        return {}

    def reply(self, after: Trained, now: Round) -> Message:
        """Client → server after training."""
        shared = select(after.own, self.owned(Owner.SHARED))
        return Message(shared, {"samples": after.client.samples}) if shared else Message()

    def replies(self, together: Sequence[Trained], now: Round) -> Sequence[Message]:
        """The same of clients that trained side by side: for what is quicker done once for all of them.

        They have models of one shape. What one replies must not depend on who the others are.
        """
        return [self.reply(after, now) for after in together]

    @property
    def differences(self) -> set[str]:
        """Parts of which a reply has differences, under the names of what was sent; of all others new values."""
        return set()

    @property
    def exchanges(self) -> bool:
        return type(self).wants is not Method.wants

    def wants(self, after: Trained, now: Round) -> Sequence[Want]:
        """Client → peers, when all have trained and replied: what it fetches of them, each thing once."""
        return ()

    def serve(self, own: Mapping[str, Tensor], want: Want) -> Message:
        """Peer → client: what it wants, as it was after the peer's own training."""
        return Message(under(own, want.what))

    def adopt(self, after: Trained, fetched: Mapping[Want, Message], now: Round) -> State:
        """Which of the client's tensors become what, given what could be fetched; some of it may have failed."""
        return {}

    @property
    def revisits(self) -> int:
        """How many of a client's training samples, other ones in every round, it has at hand when it adopts."""
        return 0

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        """The server's next state."""
        return weighted_mean(replies) if replies else server

    # --- between rounds

    def everyone(self, now: Round) -> bool:
        """Whether all clients take part in this round, whatever the participation."""
        return False

    def same_start(self) -> bool:
        """Whether what clients keep is the same for all of them at first, instead of each one's own draw."""
        return False

    def kept(self) -> set[str]:
        """Parts that a client keeps from one round to its next one; all others come anew from the server."""
        return self.owned(Owner.PRIVATE, Owner.PEER)

    def personalise(self, own: Mapping[str, Tensor], message: Message) -> State:
        """The client's model as it is used and evaluated, given what the server would send now."""
        return self.receive(own, message)

    def settled(self, own: State, validation: Mapping[int, float]) -> State:
        """What of a client's model changes when the run is over and the model is used.

        `validation`: its accuracy there, by the rounds that were evaluated.
        """
        return {}

    def needs(self, settled: State, received: State) -> State:
        """What of the received a settled model's predictions need: with the model it is handed out, all else is not."""
        return received

    def uses(self, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """How many samples each expert had in a client's last training, where experts cost unlike amounts: for FLOPs.

        By the experts' place in the model ("shared_expert.experts"); `own` is after `finish`.
        """
        return {}

    @property
    def note(self) -> str:
        """What a reader of the results must know of these options, if anything."""
        return ""

    def remarks(self, server: State) -> Sequence[str]:
        """What happened in a run that its figures do not say, from the server's last state: a line each."""
        return ()

    def tables(self, server: State) -> Mapping[str, Table]:
        """What a run leaves in its folder beside its history, from the server's last state: by names of files."""
        return {}

    # --- who owns what

    @property
    def withheld(self) -> set[str]:
        """Shared parts that a client may keep to itself; the server does without."""
        return set()

    def alike(self) -> set[str]:
        """Parts that must have the same shapes on all clients: those that are averaged, by the server or by peers."""
        return self.owned(Owner.SHARED, Owner.PEER)

    def owned(self, *owners: Owner) -> set[str]:
        """The parts of these owners."""
        return {part for part, owner in self.owners.items() if owner in owners}

    def forbidden(self, channel: Channel) -> set[str]:
        """The parts that must not appear in a message of this channel."""
        open_to = {Channel.UP: Owner.SHARED, Channel.DOWN: Owner.SHARED, Channel.PEER: Owner.PEER}[channel]
        return {part for part, owner in self.owners.items() if owner is not open_to}


def weighted_mean(replies: Sequence[Reply], parts: set[str] | None = None, equal: bool = False) -> State:
    """Σ n_k/n w_k over the replies, of some parts or of all they hold; or the plain mean, where all are `equal`.

    Buffers are averaged like weights; whole numbers (BatchNorm's counters) become the largest.
    """
    samples = [1 if equal else reply.message.numbers["samples"] for reply in replies]
    shares = torch.tensor(samples, dtype=torch.float64) / sum(samples)
    sent = [reply.message.tensors if parts is None else select(reply.message.tensors, parts) for reply in replies]
    names = sent[0].keys()
    for reply, tensors in zip(replies, sent, strict=True):
        if tensors.keys() != names:
            differing = sorted(tensors.keys() ^ names)
            raise MethodError(f"clients {replies[0].client} and {reply.client} do not both send {', '.join(differing)}")
    state = {}
    for name, first in sent[0].items():
        stacked = torch.stack([tensors[name] for tensors in sent])
        if first.is_floating_point():
            state[name] = torch.tensordot(_queued(shares, stacked), stacked, dims=1)
        else:
            state[name] = stacked.amax(0)
    return state


def _queued(values: Tensor, like: Tensor) -> Tensor:
    """Bring a few values to where another tensor is, without waiting for the work that is queued there."""
    return values.pin_memory().to(like, non_blocking=True) if like.is_cuda else values.to(like)
