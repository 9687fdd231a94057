"""FedMoE-Heads: FedMoE with a head for each expert and a gate that reads features. Ours, not the paper's."""

from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.methods.base import Batch, Model
from fedexperts.methods.fedmoe import FedMoE, mixed
from fedexperts.methods.message import Owner, State
from fedexperts.models import GateNorms, Parts
from fedexperts.task import ClientSpec


class FedMoEHeads(FedMoE):
    """ŷ = α_G·H_G(G(x)) + α_F·H_F(F(x)): outputs are mixed, not features, and each expert also answers for itself.

    L = CE(ŷ) + CE(H_G(G(x))) + CE(H_F(F(x))). The local expert with its head learns what Standalone would, the global
    one what FedPer would. The gate has no normalisation that forces its weights apart, what it reads (both experts'
    features) is not moved by it, and it starts with equal weights. docs/results/fedmoe.md shows what each difference
    from FedMoE is worth.
    """

    name = "fedmoe-heads"
    title = "FedMoE-Heads"
    source = "this package: FedMoE with a gate that does not hurt (docs/results/fedmoe.md)"
    owners = FedMoE.owners | {"global_head": Owner.PRIVATE}

    class Options(FedMoE.Options):
        gate_input: Literal["pixels", "features"] = Field(
            "features", description="what the gate reads: the image, or both experts' features"
        )
        gate_norms: GateNorms = Field("none", description="the gate's normalisations: printed, inner, none")

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        parts = super().parts(client)
        scores = cast(nn.Linear, cast(nn.Sequential, parts["gate"])[5])
        nn.init.zeros_(scores.weight)
        nn.init.zeros_(scores.bias)
        return parts | {"global_head": nn.Linear(cast(nn.Linear, parts["head"]).in_features, client.classes)}

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self._answers(model, x)[0]

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        return torch.stack([F.cross_entropy(answer, batch.y) for answer in self._answers(model, batch.x)]).sum()

    def _answers(self, model: Model, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of both together, of the global and of the local expert."""
        of_global, of_local = model.global_expert(x), model.local_expert(x)
        globally, locally = model.global_head(of_global), model.head(of_local)
        return mixed(self.weights(model, x, of_global, of_local), globally, locally), globally, locally
