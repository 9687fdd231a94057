"""FedProto: clients share nothing but the mean features of their classes, and pull their own towards everyone's."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, Method, Model, Reply, Round, Trained
from fedexperts.methods.classwise import (
    PROTOTYPES,
    check_width,
    distance_to_prototypes,
    distances,
    next_prototypes,
    no_prototypes,
    rows_of_own_classes,
)
from fedexperts.methods.message import Message, Owner, State


class FedProto(Method):
    """L = CE + λ·‖f(x) − C̄_y‖² (Eq. 7), C̄ the mean of the clients' prototypes C_k, weighted by samples (Eq. 6).

    The distance is the mean over the features, as in the authors' code. A class that nobody has sent yet pulls nowhere;
    one that nobody sends in a round keeps its prototype.
    """

    name = "fedproto"
    title = "FedProto"
    source = "Tan et al. 2022: FedProto: Federated Prototype Learning across Heterogeneous Clients"
    owners = {"extractor": Owner.PRIVATE, "head": Owner.PRIVATE}

    class Options(Frozen):
        pull: float = Field(1.0, ge=0, description="weight λ of the distance to the global prototypes")
        predict_with: Literal["head", "prototypes"] = Field(
            "head", description="the client's own head, or the nearest global prototype"
        )

    options: Options

    def start(self, model: Model) -> State:
        return no_prototypes(model)

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        if self.options.predict_with == "head":
            return super().predict(model, x, received)
        means, known = received["prototypes.means"], received["prototypes.known"]
        apart = distances(self.represent(model, x, received), means)
        return -torch.where(known > 0, apart, apart.detach().amax() + 1)

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        features = self.represent(model, batch.x, received)
        check_width(self.name, features, received["prototypes.means"])
        distance = distance_to_prototypes(features, batch.y, received)
        return F.cross_entropy(model.head(features), batch.y) + self.options.pull * distance

    def collect(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self.represent(model, x, received)

    def reply(self, after: Trained, now: Round) -> Message:
        return rows_of_own_classes(after.by_class, PROTOTYPES)

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        return next_prototypes(server, replies)
