"""FedMoE-Heads: FedMoE with a head for each expert and a gate that reads features. Ours, not the paper's."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.methods.base import Batch, Model
from fedexperts.methods.fedmoe import FedMoE
from fedexperts.methods.message import Owner, State
from fedexperts.models import Parts
from fedexperts.task import ClientSpec


class FeatureGate(nn.Sequential):
    """Two weights from both experts' features. Its last layer starts at zero: at first both count alike."""

    def __init__(self, features: int, width: int) -> None:
        last = nn.Linear(width, 2)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        super().__init__(nn.Linear(2 * features, width), nn.Sigmoid(), last, nn.Softmax(dim=1))


class FedMoEHeads(FedMoE):
    """ŷ = α_G·H_G(G(x)) + α_F·H_F(F(x)): outputs are mixed, not features, and each expert also answers for itself.

    L = CE(ŷ) + CE(H_G(G(x))) + CE(H_F(F(x))). The local expert with its head learns at least what Standalone would, the
    global one what FedPer would; the gate has no normalisation that forces its weights apart, and what it reads (both
    experts' features) does not move them. docs/results/fedmoe.md shows what each difference from FedMoE is worth.
    """

    name = "fedmoe-heads"
    title = "FedMoE-Heads"
    source = "this package: FedMoE with a gate that does not hurt (docs/results/fedmoe.md)"
    owners = FedMoE.owners | {"global_head": Owner.PRIVATE}

    def parts(self, client: ClientSpec) -> Parts:
        parts = super().parts(client)
        features = cast(nn.Linear, parts["head"]).in_features
        return parts | {
            "gate": FeatureGate(features, self.gate_width(client)),
            "global_head": nn.Linear(features, client.classes),
        }

    def weigh(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self._weigh(model, model.global_expert(x), model.local_expert(x))

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        of_global, of_local = model.global_expert(x), model.local_expert(x)
        return _mix(self._weigh(model, of_global, of_local), of_global, of_local)

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self._answers(model, x)[0]

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        return torch.stack([F.cross_entropy(answer, batch.y) for answer in self._answers(model, batch.x)]).sum()

    def _answers(self, model: Model, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of both together, of the global and of the local expert."""
        of_global, of_local = model.global_expert(x), model.local_expert(x)
        global_answer, local_answer = model.global_head(of_global), model.head(of_local)
        return _mix(self._weigh(model, of_global, of_local), global_answer, local_answer), global_answer, local_answer

    def _weigh(self, model: Model, of_global: Tensor, of_local: Tensor) -> Tensor:
        return cast(Tensor, model.gate(torch.cat([of_global, of_local], dim=1).detach()))


def _mix(weights: Tensor, of_global: Tensor, of_local: Tensor) -> Tensor:
    return weights[:, :1] * of_global + weights[:, 1:] * of_local
