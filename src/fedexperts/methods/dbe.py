"""DBE: what is a client's own in its features is kept out of the shared model, in a vector that is added to them."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, Method, Model, Reply, Round, Stage, Trained
from fedexperts.methods.message import Message, Owner, State, select
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

_MEAN = "mean.running"


class Bias(nn.Module):
    """PRBM: z̄_i^p, one vector for all of a client's samples. It begins as zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))

    def forward(self, features: Tensor) -> Tensor:
        return self.vector.expand_as(features)


class RunningMean(nn.Module):
    """The mean of the features, batch after batch."""

    running: Tensor

    def __init__(self, width: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("running", torch.zeros(width))

    def forward(self, features: Tensor) -> Tensor:
        """The mean with these features in it; in training it is remembered."""
        mean = (1 - self.momentum) * self.running + self.momentum * features.mean(0)
        if self.training:
            self.running.copy_(mean.detach())
        return mean


class DBE(Method):
    """FedAvg + DBE: the features are z = z^g + z̄_i^p, the shared extractor's and the client's own bias (PRBM).

    L = CE(head(z), y) + κ·½·mean((z̄_i^g − z̄^g)²), where z̄_i^g ← (1 − μ)·z̄_i^g + μ·(the batch's mean of z^g) begins at
    zero in every round, and z̄^g, the same for all, is the mean of the clients' z̄_i^g after the first round, weighted by
    samples. Without this regularisation nothing tells the extractor what to leave to the bias.

    The first round is FedAvg's own, with neither bias nor regularisation, and brings the means. For that the authors'
    code trains all clients once before the first round and throws the models away; here it counts, as it costs as
    much, and those who are not sampled in it have no part in z̄^g. Of that code are the beginning at zero, the mean over
    the features, and the values of κ and μ, which are for a four-layer CNN.
    """

    name = "dbe"
    title = "DBE"
    source = "Zhang et al. 2023: Eliminating Domain Bias for Federated Learning in Representation Space, NeurIPS"
    owners = {
        "extractor": Owner.SHARED,
        "head": Owner.SHARED,
        "mean": Owner.SHARED,  # z̄_i^g at a client, z̄^g at the server
        "bias": Owner.PRIVATE,
    }
    personal = "bias"

    class Options(Frozen):
        regularisation: float = Field(
            50.0, ge=0, description="weight κ of the distance of the features' mean from that of all clients"
        )
        mean_momentum: float = Field(
            1.0, gt=0, le=1, description="weight μ of the last batch in the running mean; 1: it is the batch's mean"
        )

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        model = super().parts(client)
        width = cast(int, model["extractor"].features)
        return {**model, "mean": RunningMean(width, self.options.mean_momentum), "bias": Bias(width)}

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        features = self.represent(model, x, received)
        return cast(Tensor, model.head(features + model.bias(features)))

    def stages(self, now: Round) -> Sequence[Stage]:
        if now.number == 1:
            return [Stage(("extractor", "head", "mean"), self.first_loss, self.train.epochs)]
        return [Stage(tuple(self.owners), self.loss, self.train.epochs)]

    def first_loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        features = self.represent(model, batch.x, received)
        model.mean(features)
        return F.cross_entropy(model.head(features), batch.y)

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        features = self.represent(model, batch.x, received)
        distance = (model.mean(features) - received[_MEAN]).square().mean() / 2
        task = F.cross_entropy(model.head(features + model.bias(features)), batch.y)
        return cast(Tensor, task + self.options.regularisation * distance)

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        return super().receive(own, message) | {_MEAN: torch.zeros_like(message.tensors[_MEAN])}

    def reply(self, after: Trained, now: Round) -> Message:
        parts = {"extractor", "head"} | ({"mean"} if now.number == 1 else set())
        return Message(select(after.own, parts), {"samples": after.client.samples})

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        return server | super().combine(server, replies, now)
