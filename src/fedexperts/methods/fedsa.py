"""FedSA: features are drawn to anchors that are the same for all clients, and heads must know the anchors' classes."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, Method, Model, Reply, Round, Stage, Trained
from fedexperts.methods.classwise import (
    PROTOTYPES,
    between_classes,
    check_width,
    distances,
    margin_contrast,
    rows_of_own_classes,
    sums,
)
from fedexperts.methods.message import Message, Owner, State
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

_ANCHORS = "anchors.rows"


class Margin(nn.Module):
    """The mean gap of a client's own prototypes after its last round; the margin that follows from it in this one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("own", torch.zeros(()))
        self.register_buffer("width", torch.zeros(()))


class FedSA(Method):
    """One anchor A^c for each class. With features f(x) and head h, a client learns by

    L = CE(h(f(x)), y) + λ·‖f(x) − A^y‖² + α·ℓ_con + β·CE(h(A^c), c): anchor-based regularisation, margin-enhanced
    contrast, calibration of the classifier. ℓ_con = −log e^{−d_y − m} / (e^{−d_y − m} + Σ_{c ≠ y} e^{−d_c}),
    d_c = ‖f(x) − A^c‖. A class's gap is the distance to the nearest other one; the margin m is the mean gap of the
    client's own prototypes, as they were after its last round, or that of the anchors, whichever is larger.
    The server moves the anchors towards the mean C̄^c of the clients' prototypes: A^c ← μ·A^c + (1 − μ)·C̄^c.

    Written after the authors' code: anchors begin as random vectors that went through two random layers (linear,
    BatchNorm, ReLU); the distance is a mean over the features; clients count alike in C̄, and a class that nobody sent
    keeps its anchor; the weights and μ are theirs. There prototypes are means over the steps of training; here they are
    taken with the trained model, over the same samples. There predictions are by the nearest mean prototype of the last
    round; here by the client's own head, as in `fedproto`, or by the nearest anchor.
    """

    name = "fedsa"
    title = "FedSA"
    source = (
        "Zhou et al. 2025: FedSA: A Unified Representation Learning via Semantic Anchors for Prototype-based Federated "
        "Learning, AAAI"
    )
    owners = {"extractor": Owner.PRIVATE, "head": Owner.PRIVATE, "margin": Owner.PRIVATE}

    class Options(Frozen):
        pull: float = Field(10.0, ge=0, description="weight λ of the distance to the class's anchor")
        contrast: float = Field(1.0, ge=0, description="weight α of the contrast with the other classes' anchors")
        calibration: float = Field(1.0, ge=0, description="weight β of the head's error on the anchors")
        anchor_momentum: float = Field(
            0.9999, ge=0, le=1, description="share μ of the old anchor in the new one; the rest are prototypes"
        )
        predict_with: Literal["head", "anchors"] = Field(
            "head", description="the client's own head, or the nearest anchor"
        )

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        return super().parts(client) | {"margin": Margin()}

    def stages(self, now: Round) -> Sequence[Stage]:
        return [Stage(("extractor", "head"), self.loss, self.train.epochs)]

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        if self.options.predict_with == "head":
            return super().predict(model, x, received)
        return -distances(self.represent(model, x, received), received[_ANCHORS])

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        features, anchors = self.represent(model, batch.x, received), received[_ANCHORS]
        check_width(self.name, features, anchors)
        distance = (features - anchors[batch.y]).square().mean()
        contrast = margin_contrast(features, batch.y, anchors, model.margin.width)
        calibration = F.cross_entropy(model.head(anchors), torch.arange(len(anchors), device=anchors.device))
        weighted = self.options.pull * distance + self.options.contrast * contrast
        return F.cross_entropy(model.head(features), batch.y) + weighted + self.options.calibration * calibration

    def collect(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self.represent(model, x, received)

    # --- messages

    def start(self, model: Model) -> State:
        weight = model.head.weight
        width = weight.shape[1]
        layers = [layer for _ in range(2) for layer in (nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())]
        return {_ANCHORS: nn.Sequential(*layers)(torch.randn(weight.shape)).detach().to(weight)}

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        anchors = message.tensors[_ANCHORS]
        everyones = mean_gap(anchors, torch.ones_like(anchors[:, 0], dtype=torch.bool))
        return {"margin.width": everyones.maximum(own["margin.own"])}

    def finish(self, after: Trained, now: Round) -> State:
        return {"margin.own": mean_gap(after.by_class.means, after.by_class.counts > 0)}

    def reply(self, after: Trained, now: Round) -> Message:
        return rows_of_own_classes(after.by_class, PROTOTYPES)

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        anchors, old = server[_ANCHORS], self.options.anchor_momentum
        total, clients = sums(replies, PROTOTYPES, anchors, by_samples=False)
        moved = old * anchors + (1 - old) * total / clients.clamp(min=1)[:, None]
        return {_ANCHORS: torch.where(clients[:, None] > 0, moved, anchors)}


def mean_gap(rows: Tensor, there: Tensor) -> Tensor:
    """The mean distance to the nearest other class, over the classes that are there; 0 for one alone."""
    least = between_classes(rows, there).amin(1)
    return torch.where(least.isfinite(), least, 0).sum() / least.isfinite().sum().clamp(min=1)
