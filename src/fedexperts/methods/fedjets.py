"""FedJETs: a frozen common expert tells a shared gate which few of the shared experts go to which client."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Self, cast

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import absolute
from fedexperts.methods.base import Batch, Model, Reply, Round, Stage, Trained, weighted_mean
from fedexperts.methods.message import Message, Owner, State, select
from fedexperts.methods.mixture import Mixture, alike, mean_of_each, mean_use, mixed, one
from fedexperts.methods.saved import fitting, saved_part
from fedexperts.models import Parts, build, strongest
from fedexperts.task import ClientSpec

_CHOSEN, _ANCHORED, _USE = "chosen.experts", "chosen.anchored", "use.mean"


class FedJETs(Mixture):
    """The common expert's features feed the gate, one linear layer; a client holds `top` experts of K.

    It trains them, mixed by the gate's softmax over them, and the gate; a sample is answered by the best-scored one.
    The server sends each client the experts that the gate used most on its data when it last trained, random ones
    before; experts and gate are means over those who sent them, weighted by samples.

    Clients 0 … K−1 are the anchors: client k always has expert k, and −log g_k(x) is part of its loss.

    Taken here, as no code was found: who the anchors are, the weight of their loss, experts that start fresh, and a
    choice made after training; the paper's client chooses at the start of a round, and asks. The common expert goes
    down to each client once, when it first takes part.
    """

    name = "fedjets"
    title = "FedJETs"
    source = "Dun et al. 2023: FedJETs: Efficient Just-In-Time Personalization with Federated Mixture of Experts"
    owners = {"common": Owner.SHARED, "gate": Owner.SHARED, "experts": Owner.SHARED}

    class Options(Mixture.Options):
        top: int = Field(2, ge=1, description="experts that a client receives and trains")
        anchors: float = Field(1.0, ge=0, description="weight of the anchors' loss for the gate; 0: no anchors")
        common: Path | None = Field(
            None, description="folder of a finished FedAvg run on the same task: its extractor is the common expert's"
        )

        _absolute = field_validator("common")(absolute)

        @model_validator(mode="after")
        def _enough(self) -> Self:
            if self.top > self.experts:
                raise ValueError(f"a client cannot have the top {self.top} of {self.experts} experts")
            return self

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        common = build(client.model, client.shape, client.classes)["extractor"]
        return {
            "common": common,
            "gate": nn.Linear(cast(int, common.features), self.options.experts),
            "experts": alike(client, self.options.top),
        }

    def scores(self, model: Model, x: Tensor) -> Tensor:
        """Of all K experts."""
        return cast(Tensor, model.gate(model.common(x)))

    def log_weights(self, model: Model, x: Tensor, received: State) -> Tensor:
        return strongest(columns(self.scores(model, x), received[_CHOSEN]).log_softmax(1), 1, rest=-torch.inf)

    def weigh(self, model: Model, x: Tensor, received: State) -> Tensor:
        """Of all K experts, those that the client does not have too."""
        return self.scores(model, x).softmax(1)

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        scores, chosen = self.scores(model, batch.x), received[_CHOSEN]
        answer = mixed(columns(scores, chosen).log_softmax(1), model, batch.x)
        anchor = -columns(scores.log_softmax(1), chosen[:1]).mean() * received[_ANCHORED]
        return F.nll_loss(answer, batch.y) + self.options.anchors * anchor

    def stages(self, now: Round) -> Sequence[Stage]:
        return [Stage(("gate", "experts"), self.loss, self.train.epochs)]

    def collect(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self.weigh(model, x, received)

    @property
    def note(self) -> str:
        return "" if self.options.common else "fedjets: the common expert is not pre-trained (--common names no run)"

    def kept(self) -> set[str]:
        return {"common"}

    def start(self, model: Model) -> State:
        common = model.common.state_dict()
        if (folder := self.options.common) is not None:
            common = fitting(saved_part(folder, "extractor", "common"), common, folder, "common")
        experts = nn.ModuleList(fresh(model.experts[0]) for _ in range(self.options.experts))
        parts = {"common": common, "gate": model.gate.state_dict(), "experts": experts.state_dict()}
        return {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}

    def chosen(self, server: State, client: ClientSpec, now: Round) -> list[int]:
        """The client's experts, the one that it is the anchor of first."""
        count, use = self.options.experts, server.get(f"uses.{client.id}")
        known = now.stream("experts", client.id).permutation(count) if use is None else use.argsort(descending=True)
        order = known.tolist()
        if self.anchors(client):
            order = sorted(order, key=lambda expert: expert != client.id)
        return order[: self.options.top]

    def anchors(self, client: ClientSpec) -> bool:
        return self.options.anchors > 0 and client.id < self.options.experts

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        chosen, gate = self.chosen(server, client, now), select(server, {"gate"})
        common = {} if f"uses.{client.id}" in server else select(server, {"common"})
        experts = {n: t for slot, expert in enumerate(chosen) for n, t in one(server, expert, renamed=slot).items()}
        like = server["gate.weight"]
        choice = {
            _CHOSEN: torch.tensor(chosen, device=like.device),
            _ANCHORED: like.new_tensor(float(self.anchors(client))),
        }
        return Message(common | gate | experts | choice)

    def heard(self, message: Message) -> State:
        return select(message.tensors, {"chosen"})

    def reply(self, after: Trained, now: Round) -> Message:
        chosen = after.received[_CHOSEN].tolist()
        experts = {n: t for slot, expert in enumerate(chosen) for n, t in one(after.own, slot, renamed=expert).items()}
        own = select(after.own, {"gate"}) | experts | {_USE: mean_use(after.by_class)}
        return Message(own, {"samples": after.client.samples})

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        state = mean_of_each(server, replies, self.options.experts, lambda reply, _: reply.message.numbers["samples"])
        uses = {f"uses.{reply.client}": reply.message.tensors[_USE].clone() for reply in replies}
        return state | weighted_mean(replies, {"gate"}) | uses


def columns(scores: Tensor, experts: Tensor) -> Tensor:
    """`scores[:, experts]`, with a gradient that a GPU adds up in the same order every time."""
    return scores.gather(1, experts.expand(scores.shape[0], -1))


def fresh(expert: nn.Module) -> nn.Module:
    """A model like this one, initialised anew."""
    twin = copy.deepcopy(expert)
    for layer in twin.modules():
        if callable(reset := getattr(layer, "reset_parameters", None)):
            reset()
    return twin
