"""A method that uses everything a method can do, so that the conformance tests try all of it."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from support import FEATURES
from torch import Tensor, nn

from fedexperts.methods import Batch, Message, Method, Model, Owner, Round, Stage, State, Trained, Want
from fedexperts.models import Parts
from fedexperts.task import ClientSpec


class Memory(nn.Module):
    """What a client remembers of its last round."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("head_bias", torch.zeros(4))


class Everything(Method):
    """Two stages with rates and shares of their own, BatchNorm, a shared part that is kept, messages that differ, a

    memory, a look at the training data, a part that a peer is asked for and mixed in with a look at some of the data.
    """

    name = "everything"
    title = "Everything"
    source = "nobody's"
    owners = {
        "extractor": Owner.SHARED,
        "norm": Owner.SHARED,
        "head": Owner.PRIVATE,
        "memory": Owner.PRIVATE,
        "advice": Owner.PEER,
    }

    def parts(self, client: ClientSpec) -> Parts:
        parts = super().parts(client)
        more = {"norm": nn.BatchNorm1d(FEATURES), "memory": Memory(), "advice": nn.Linear(FEATURES, 4)}
        return {"extractor": parts["extractor"], "head": parts["head"], **more}

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        features = model.norm(model.extractor(x))
        advised = model.head(features) + 0.1 * model.advice(features)
        return cast(Tensor, advised + received["hint.shift"] + 0.1 * model.memory.head_bias)

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        pull = (model.head.weight - received["hint.weight"]).square().sum()
        return super().loss(model, batch, received) + 0.01 * pull

    def stages(self, now: Round) -> Sequence[Stage]:
        return [
            Stage(("head", "advice"), self.loss, epochs=1, rates={"head": 0.02}, share=(0, 0.4)),
            Stage(("extractor", "norm"), super().loss, epochs=2, rates={"norm": 0.2}, share=(0.4, 1)),
        ]

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        rng = now.stream("hint", client.id)
        like = server["extractor.conv1.weight"]
        hint = {"hint.shift": rng.normal(size=4), "hint.weight": rng.normal(size=(4, FEATURES))}
        hints = {n: torch.from_numpy(v).to(like) for n, v in hint.items()}
        rare = {"rare.thing": like} if client.id % 2 else {}  # not everybody's: the loss must not hear of it
        return Message({**server, **hints, **rare}, {"round": now.number})

    def heard(self, message: Message) -> State:
        return {name: tensor for name, tensor in message.tensors.items() if name != "rare.thing"}

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        mixed = {n: (own[n] + t) / 2 for n, t in message.tensors.items() if n in ("norm.weight", "norm.bias")}
        return {n: t for n, t in message.tensors.items() if n.startswith("extractor.")} | mixed

    def finish(self, after: Trained, now: Round) -> State:
        return {"memory.head_bias": after.own["head.bias"] * now.number + after.by_class.means.mean(1)}

    def collect(self, model: Model, x: Tensor, received: State) -> Tensor:
        return cast(Tensor, model.extractor(x))

    def wants(self, after: Trained, now: Round) -> Sequence[Want]:
        return [Want((after.client.id + step) % 6, "advice") for step in (1, 2)]

    def adopt(self, after: Trained, fetched: Mapping[Want, Message], now: Round) -> State:
        theirs = [message.tensors["advice.bias"] for message in fetched.values()]
        seen = after.x.mean() / len(after.x)
        return {"advice.bias": torch.stack([after.own["advice.bias"], *theirs]).mean(0) + seen}

    @property
    def revisits(self) -> int:
        return 20  # some clients have fewer

    def kept(self) -> set[str]:
        return {"norm", "head", "memory", "advice"}

    def personalise(self, own: Mapping[str, Tensor], message: Message) -> State:
        return self.receive(own, message) | {"head.bias": own["head.bias"] + 0.1}
