"""FedAPEN: a shared and a private model teach each other, and each client learns how much each of them counts."""

from collections.abc import Sequence
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.methods.base import Batch, Model, Round, Stage, Trained
from fedexperts.methods.message import Owner, State
from fedexperts.methods.mutual import Mutual, divergence
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

_WEIGHT = "ensemble.weight"


class Ensemble(nn.Module):
    """λ, the private model's weight, between 0 and 1; it begins in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self) -> Tensor:
        """λ brought back to [0, 1]; its gradient is that at the border, so that it can turn round there."""
        return self.weight + (self.weight.clamp(0, 1) - self.weight).detach()


class FedAPEN(Mutual):
    """ŷ = λ·private(x) + (1−λ)·shared(x), on logits. A round has two stages:

    - learning for adaptability: λ alone, CE of the ensemble, both models fixed, on data that the models never train on;
    - learning for ensemble: each model by CE + KL(p_other ‖ p_own) + CE of the ensemble, λ and the other model fixed.
    """

    name = "fedapen"
    title = "FedAPEN"
    source = (
        "Qin et al. 2023: FedAPEN: Personalized Cross-silo Federated Learning with Adaptability to Statistical "
        "Heterogeneity, KDD"
    )
    owners = {"shared": Owner.SHARED, "private": Owner.PRIVATE, "ensemble": Owner.PRIVATE}
    experts = ("shared", "private")

    class Options(Mutual.Options):
        ensemble_lr: float = Field(0.001, gt=0, description="learning rate of the ensemble's weight λ")
        ensemble_epochs: int = Field(10, ge=1, description="epochs for λ at the start of a round")
        ensemble_share: float = Field(0.05, gt=0, lt=1, description="share of the client's data that only λ sees")

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        private, shared = self.pair(client)
        return {"shared": shared, "private": private, "ensemble": Ensemble()}

    def weigh(self, model: Model, x: Tensor, received: State) -> Tensor:
        private = model.ensemble()
        return torch.stack([1 - private, private]).expand(x.shape[0], 2)

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        return torch.cat([model.shared.extractor(x), model.private.extractor(x)], dim=1)

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self._mixed(model, model.shared(x), model.private(x))

    def stages(self, now: Round) -> Sequence[Stage]:
        rates, cut = {"ensemble": self.options.ensemble_lr}, self.options.ensemble_share
        return [
            Stage(("ensemble",), super().loss, self.options.ensemble_epochs, rates, share=(0, cut)),
            Stage(("shared", "private"), self.loss, self.train.epochs, share=(cut, 1)),
        ]

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        shared, private = model.shared(batch.x), model.private(batch.x)

        def lesson(own: Tensor, other: Tensor, ensemble: Tensor) -> Tensor:
            both = F.cross_entropy(own, batch.y) + F.cross_entropy(ensemble, batch.y)
            return both + divergence(teacher=other, learner=own)

        return lesson(shared, private, self._mixed(model, shared, private.detach())) + lesson(
            private, shared, self._mixed(model, shared.detach(), private)
        )

    def finish(self, after: Trained, now: Round) -> State:
        """λ itself goes back to [0, 1]."""
        return {_WEIGHT: after.own[_WEIGHT].clamp(0, 1)}

    def _mixed(self, model: Model, shared: Tensor, private: Tensor) -> Tensor:
        weight = model.ensemble()
        return cast(Tensor, weight * private + (1 - weight) * shared)
