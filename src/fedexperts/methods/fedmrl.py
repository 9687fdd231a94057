"""FedMRL: a shared small model and the client's own one see a sample together, through nested representations."""

from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.methods.base import Batch, Model
from fedexperts.methods.message import Owner, State
from fedexperts.methods.mutual import Mutual
from fedexperts.models import Parts
from fedexperts.task import ClientSpec


class FedMRL(Mutual):
    """R_G of the small model G(θ), which all share, and R_F of the client's own F_k(ω_k) are put side by side, and the
    projector P_k(φ_k), one linear layer of the client's own, makes one representation of both: R̃ = P_k(R_G ∘ R_F).

    It is nested: G's header reads its first d_1 values, F_k's header all d_2 of them. One loss moves all three models,
    L = m·CE(G_hd(R̃[: d_1]), y) + CE(F_hd(R̃), y), and θ = Σ n_k/n θ_k. A client predicts with F_hd.

    In the paper the extractor of G itself ends in d_1 values, 500 at most beside F_k's 500. Here G is any model of the
    zoo, and its header reads half as many values as its extractor gives, if not told otherwise. Where F_k's extractor
    gives fewer than that, R̃ has d_1 values, and F_hd reads the first d_2. Gradients are not clipped, which the authors'
    code does at a norm of 50.
    """

    name = "fedmrl"
    title = "FedMRL"
    source = "Yi et al. 2024: Federated Model Heterogeneous Matryoshka Representation Learning, NeurIPS"
    owners = {"small": Owner.SHARED, "local": Owner.PRIVATE, "projector": Owner.PRIVATE}

    class Options(Mutual.Options):
        inner_width: int | None = Field(
            None, ge=1, description="values d_1 that the shared header reads (default: half of the shared model's)"
        )
        inner_weight: float = Field(1.0, ge=0, description="weight m of the shared header's loss")

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        local, small = self.pair(client)
        inner = self.options.inner_width or max(1, small.features // 2)
        projector = nn.Linear(small.features + local.features, max(inner, local.features))
        small.head = nn.Linear(inner, client.classes)
        return {"small": small, "local": local, "projector": projector}

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        """R̃."""
        both = torch.cat([model.small.extractor(x), model.local.extractor(x)], dim=1)
        return cast(Tensor, model.projector(both))

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        return _first(model.local.head, self.represent(model, x, received))

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        fused = self.represent(model, batch.x, received)
        inner, outer = (F.cross_entropy(_first(m.head, fused), batch.y) for m in (model.small, model.local))
        return self.options.inner_weight * inner + outer


def _first(head: nn.Linear, fused: Tensor) -> Tensor:
    """What a header says of as many values as it reads."""
    return cast(Tensor, head(fused[:, : head.in_features]))
